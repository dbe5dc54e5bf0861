"""SPLIT: a joint trace becomes a forward and a backward, with what the one saves for the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tj_core.bodies import with_args
from tj_core.proxy import Proxy
from tj_core.stages import Stage
from tj_core.symbol import BoundSymbol
from tj_core.trace import Namer, Trace
from tj_core.tree import leaves, map_tree

from tj_autograd.detached import detached
from tj_autograd.partition import Cheap, choose_saved

__all__ = ["Halves", "is_backward", "split"]


@dataclass(frozen=True, slots=True)
class Halves:
    """The two programs of a joint trace.

    ``forward`` takes the inputs and returns three tuples: the ``roots``, which are the outputs that
    have a tangent; the ``rest`` of what the program returns; the ``saved`` values. ``backward``
    takes the saved values and the tangents and returns the gradients of the inputs. ``outputs`` is
    what the user's program returns, over inputs, roots and rest.
    """

    forward: Trace
    backward: Trace
    outputs: Any
    roots: tuple[Proxy, ...]
    rest: tuple[Proxy, ...]
    saved: tuple[Proxy, ...]
    tangents: tuple[Proxy, ...]


def split(joint: Trace, cheap: Cheap) -> Halves:
    """The halves of ``joint``.

    ``cheap`` says which calls may run again in the backward, to save less.
    """
    outputs, gradients = joint.outputs
    inputs = tuple(p for p in joint.inputs if not is_backward(p))
    tangents = tuple(p for p in joint.inputs if is_backward(p))
    ahead = tuple(c for c in joint.calls if not is_backward(c))
    back = _live([c for c in joint.calls if is_backward(c)], gradients)
    known = {p.name for p in tangents}
    needed = [p.name for p in _read(back, gradients, known)]
    chosen = choose_saved(inputs, ahead, needed, cheap)
    back, gradients = _Again(ahead, chosen, Namer(joint.names())).fill(back, gradients)
    saved = tuple(_read(back, gradients, known))
    roots, rest = _returned(outputs, inputs)
    forward = joint.replace(
        inputs=inputs,
        calls=ahead,
        outputs=(roots, rest, saved),
        stage=Stage.SPLIT,
    )
    backward = joint.replace(
        inputs=(*saved, *tangents),
        calls=tuple(back),
        outputs=gradients,
        name="backward",
        stage=Stage.SPLIT,
    )
    return Halves(detached(forward), detached(backward), outputs, roots, rest, saved, tangents)


@dataclass
class _Again:
    """Puts calls of the forward into the backward where what they make is not saved."""

    forward: tuple[BoundSymbol, ...]
    saved: frozenset[str]
    namer: Namer
    made: dict[str, Proxy] = field(default_factory=dict)
    calls: list[BoundSymbol] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.maker = {p.name: call for call in self.forward for p in call.defined()}

    def fill(self, back: Sequence[BoundSymbol], gradients: Any) -> tuple[list[BoundSymbol], Any]:
        """The backward with these calls, each before its first use, and its outputs."""
        for call in back:
            for p in call.flat_args:
                self.provide(p)
            self.calls.append(with_args(call, self.current))
        for p in leaves(gradients):
            if isinstance(p, Proxy):
                self.provide(p)
        return self.calls, map_tree(self.current, gradients, Proxy)

    def current(self, p: Proxy) -> Proxy:
        return self.made.get(p.name, p)

    def provide(self, wanted: Proxy) -> None:
        """See to it that ``wanted`` is there, without recursion: chains may be long."""
        todo = [wanted]
        while todo:
            call = self.maker.get(todo[-1].name)
            if call is None or todo[-1].name in self.saved or todo[-1].name in self.made:
                todo.pop()
                continue
            missing = [p for p in call.flat_args if self.missing(p)]
            todo += missing
            if not missing:
                self.repeat(call)
                todo.pop()

    def missing(self, p: Proxy) -> bool:
        return p.name in self.maker and p.name not in self.saved and p.name not in self.made

    def repeat(self, call: BoundSymbol) -> None:
        again = with_args(call, self.current)
        names = {p.name: p.replace(name=self.namer(p.name)) for p in call.defined()}
        again = again.replace(
            outputs=map_tree(lambda p: names.get(p.name, p), again.outputs, Proxy),
            tags=again.tags.add("BACKWARD"),
            parent=call.label,
        )
        self.calls.append(again)
        self.made |= {old: new for old, new in names.items() if old not in self.saved}


def is_backward(carrier: Proxy | BoundSymbol) -> bool:
    """Whether a value or a call belongs to the backward."""
    return "BACKWARD" in carrier.tags


def _returned(outputs: Any, inputs: Sequence[Proxy]) -> tuple[tuple[Proxy, ...], tuple[Proxy, ...]]:
    """The distinct outputs that are no inputs: those that require a gradient, and others."""
    known = {p.name for p in inputs}
    found = {p.name: p for p in leaves(outputs) if isinstance(p, Proxy) and p.name not in known}
    carrying = [p for p in found.values() if getattr(p, "requires_grad", False)]
    others = [p for p in found.values() if not getattr(p, "requires_grad", False)]
    return tuple(carrying), tuple(others)


def _live(calls: Sequence[BoundSymbol], gradients: object) -> list[BoundSymbol]:
    """The calls that ``gradients`` depend on, and those with effects."""
    wanted = {p.name for p in leaves(gradients) if isinstance(p, Proxy)}
    kept = []
    for call in reversed(calls):
        if call.effects.removable and wanted.isdisjoint(p.name for p in call.flat_outs):
            continue
        kept.append(call)
        wanted.update(p.name for p in call.flat_args)
    return kept[::-1]


def _read(calls: Sequence[BoundSymbol], gradients: object, known: set[str]) -> Iterator[Proxy]:
    """The values that the backward uses and does not make, each once, in order of first use."""
    seen = set(known)
    for call in calls:
        for p in call.flat_args:
            if p.name not in seen:
                seen.add(p.name)
                yield p
        seen.update(p.name for p in call.flat_outs)
    for p in leaves(gradients):
        if isinstance(p, Proxy) and p.name not in seen:
            seen.add(p.name)
            yield p
