"""The backward programs of one forward: one per layout of the tangents, made when first needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.codegen import Program
from tj_core.errors import TagError
from tj_core.proxy import Proxy, TensorProxy
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace
from tj_core.tree import leaves
from tj_torch.frontend.dynamo import compile_lock

from tj_autograd.again import Again, again
from tj_autograd.joint import Layout
from tj_autograd.replay import draws_again, restoring
from tj_autograd.split import Halves

__all__ = ["Boxed", "Pullback", "Variants"]

LIMIT = 8
"""Backward programs per forward; tangents laid out in yet another way are copied."""

Boxed = Callable[[list[Any]], Any]
"""A program that takes one list, and empties it."""


@dataclass(frozen=True, slots=True)
class Pullback:
    """A backward program: which saved values it takes, and which tangents laid out how.

    ``tangents`` has a place for each root; None where the program takes none.
    """

    program: Boxed
    saved: tuple[int, ...]
    tangents: tuple[TensorProxy | None, ...]


@dataclass
class Variants:
    """Makes and keeps the backward programs of one joint trace.

    ``usual`` is the layout of the tangents that ``halves`` was made for; ``joint`` makes the joint
    trace for another one, from ``functional``, and ``split`` its halves, which save no other values
    than those named. ``within`` is entered while one is compiled: the
    sizes of the program.
    """

    halves: Halves
    compile_later: Callable[[str, Trace], Program]
    functional: Trace
    joint: Callable[[Layout], Trace]
    split: Callable[[Trace, frozenset[str]], Halves]
    usual: Layout
    within: Callable[[], AbstractContextManager[None]]
    known: dict[Layout, Pullback] = field(default_factory=dict)

    def __getitem__(self, layout: Layout) -> Pullback:
        """The program for tangents laid out like ``layout``, which says None where there is none.

        The first of some other layout, if the forward has not saved what its own would read.
        """
        found = self.known.get(layout)
        if found is None:
            # Backward may run in any thread; expansions are made by one at a time.
            with compile_lock(), self.within():
                found = self.known.get(layout) or self._make(layout)
                self.known[layout] = found
        return found

    @functools.cached_property
    def once_more(self) -> Again:
        """The program that returns the roots, for a gradient to be differentiated again."""
        names = [x.name if isinstance(x, Proxy) else None for x in leaves(self.halves.outputs)]
        return again(self.functional, [names.index(p.name) for p in self.halves.roots])

    @functools.cached_property
    def again(self) -> Callable[..., Any]:
        """The same, compiled, under PyTorch's own autograd."""
        with compile_lock(), self.within():
            program = self.compile_later("again", self.once_more.trace).function
        # Where a caller is below PyTorch's hook, it is not to look for calls to capture in here.
        return torch._dynamo.disable(lambda *inputs: program(list(inputs)))

    def _make(self, layout: Layout) -> Pullback:
        if layout == self.usual:
            program = self._compiled("backward", self.halves.backward)
            every = tuple(range(len(self.halves.saved)))
            return Pullback(program, every, self.halves.tangents)  # type: ignore[arg-type]
        found = self._other(layout) if len(self.known) < LIMIT else None
        return found or self[self.usual]

    def _compiled(self, name: str, backward: Trace) -> Boxed:
        program = self.compile_later(name, backward).function
        return restoring(program) if draws_again(backward) else program

    def _other(self, layout: Layout) -> Pullback | None:
        mine = {p.name: i for i, p in enumerate(self.halves.saved)}
        try:
            made = self.split(self.joint(layout), frozenset(mine))
        except TagError:  # what it reads cannot be made from what is saved
            return None
        before, now = _makers(self.halves), _makers(made)
        if any(p.name not in mine or before.get(p.name) != now.get(p.name) for p in made.saved):
            return None
        program = self._compiled(f"backward_{len(self.known)}", made.backward)
        tangents = iter(made.tangents)
        expected = tuple(None if how is None else next(tangents) for how in layout)
        return Pullback(
            program,
            tuple(mine[p.name] for p in made.saved),
            expected,  # type: ignore[arg-type]
        )


def _makers(halves: Halves) -> dict[str, BoundSymbol]:
    """The forward's calls by the values they define."""
    return {p.name: call for call in halves.forward.calls for p in call.flat_outs}
