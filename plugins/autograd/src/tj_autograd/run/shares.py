"""Gradients of some of a segment's inputs, where the running backward wants no others.

`torch.autograd.grad` asks for some gradients alone. Schedules of pipelines ask for those of a
stage's inputs first and of its weights later, with the same tangents: what the first program has
computed on the way, the second one reads.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Proxy,
    Replacement,
    RuleTable,
    Trace,
    TraceEditor,
    free_values,
    live_calls,
)
from tj_torch.internal import backward_keeps_graph, is_executed
from torch import nn

from tj_autograd.joint.replay import draws_again

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tj_autograd.split.halves import Part

__all__ = ["Boxed", "Shares", "divisible"]

Boxed = Callable[[list[Any]], Any]
"""A program with one list as its argument, which it empties."""

Wanted = tuple[bool, ...]
"""For each gradient of a segment, True if the running backward wants it."""

LIMIT = 8
"""Number of programs for some gradients, per segment; further ones run the whole backward."""


def divisible(part: Part) -> bool:
    """Check that gradients can be computed apart: no call draws, writes or has another effect."""
    backward = part.backward
    several = len(part.gradients) > 1 and not draws_again(backward)
    return several and all(call.effects.removable for call in backward.calls)


@dataclass(frozen=True, slots=True)
class Share:
    """A program for some gradients.

    It takes the inputs of the whole backward at the indices ``reads``, and values carried from
    another share; it returns the gradients, then the values that a later share reads.
    """

    program: Boxed
    reads: tuple[int, ...]

    def run(self, box: list[Any], carried: Sequence[Any] = ()) -> tuple[Sequence[Any], Any]:
        """Return the gradients, and the values for a later share; ``box`` is emptied."""
        takes = [*(box[i] for i in self.reads), *carried]
        box.clear()  # the program empties its own as it goes
        gradients, after = self.program(takes)
        return gradients, after


@dataclass(frozen=True, slots=True)
class Pass:
    """A run for some gradients of a graph that is retained.

    ``carried`` are the values that it has left for the gradients ``later``, if any. ``versions``
    are those of ``tangents`` and carried values: who writes them makes the values stale.
    """

    wanted: Wanted
    later: Wanted | None = None
    tangents: tuple[torch.Tensor | None, ...] = ()
    carried: tuple[Any, ...] = ()
    versions: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, wanted: Wanted, tangents: Sequence[Any], later: Wanted | None, carried: Sequence[Any]
    ) -> Pass:
        """The run that has just been done."""
        if later is None:  # nothing is kept alive
            return cls(wanted)
        versions = _versions((*tangents, *carried))
        return cls(wanted, later, tuple(tangents), tuple(carried), versions)

    def serves(self, wanted: Wanted, tangents: Sequence[Any]) -> bool:
        """Check that the carried values are those of ``wanted`` for the same ``tangents``."""
        return (
            self.later == wanted
            and len(self.tangents) == len(tangents)
            and all(map(operator.is_, self.tangents, tangents))
            and self.versions == _versions((*self.tangents, *self.carried))
        )


def _versions(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple([v._version for v in values if isinstance(v, torch.Tensor)])


@dataclass
class Shares:
    """Makes and caches the programs for some gradients of ``part``.

    ``rewrite`` applies rules to a trace, ``compiled`` compiles it; ``within`` is entered meanwhile.
    Gradients in ``seen`` have been asked before: the first time, the whole backward runs, which is
    compiled anyway. ``after`` maps gradients that are asked first to those that are asked later of
    the same node, once that has been seen: only then values are kept for them. ``asked`` are the
    places of two gradients, see `wanted`.
    """

    part: Part
    rewrite: Callable[[Trace, RuleTable[Any]], Trace]
    compiled: Callable[[str, Trace], Boxed]
    within: Callable[[], AbstractContextManager[Any]]
    known: dict[_Key, Share] = field(default_factory=dict)
    seen: set[Wanted] = field(default_factory=set)
    after: dict[Wanted, Wanted] = field(default_factory=dict)
    asked: tuple[int, ...] | None = None

    def wanted(self, ctx: Any) -> Wanted | None:
        """The gradients that the running backward wants of the node ``ctx``; None for all.

        PyTorch tells of one node at a time, so that two decide if it is asked for the others: the
        first that belongs to a parameter, and the first that does not.
        """
        edges = ctx.next_functions
        if self.asked is None:
            kinds = [isinstance(getattr(n, "variable", None), nn.Parameter) for n, _ in edges]
            self.asked = tuple({kind: i for i, kind in reversed([*enumerate(kinds)])}.values())
        if all([is_executed(edges[i][0]) for i in self.asked]):
            return None
        return tuple([is_executed(node) for node, _ in edges])

    def gradients(
        self, ctx: Any, wanted: Wanted, box: list[Any], given: Sequence[Any]
    ) -> list[Any] | None:
        """Compute the gradients ``wanted``, None for others; None as a whole if no program can.

        ``box`` has the inputs of the whole backward, and is emptied; ``given`` are the tangents as
        autograd has handed them over.
        """
        earlier: Pass | None = ctx.asked
        keeps = backward_keeps_graph()
        if earlier is not None and earlier.serves(wanted, given):
            ctx.asked, share = None, self._share(earlier.wanted, wanted, second=True)
            return _placed(wanted, share.run(box, earlier.carried)[0]) if share else None
        if earlier is not None:
            self._saw(earlier.wanted, wanted)
        later = self.after.get(wanted) if keeps else None
        share = self._share(wanted, later) if wanted in self.seen else None
        if share is None:
            self.seen.add(wanted)
            ctx.asked = Pass(wanted) if keeps else None
            return None
        found, carried = share.run(box)
        ctx.asked = Pass.of(wanted, given, later, carried) if keeps else None
        return _placed(wanted, found)

    def _saw(self, first: Wanted, then: Wanted) -> None:
        if not any(a and b for a, b in zip(first, then, strict=True)):
            self.after.setdefault(first, then)

    def _share(self, first: Wanted, then: Wanted | None, *, second: bool = False) -> Share | None:
        key = first, then, second
        if key not in self.known:
            with self.within():  # another thread may have made it meanwhile
                if key not in self.known:
                    if len(self.known) >= LIMIT:
                        return None
                    self.known[key] = self._made(*key)
        return self.known[key]

    def _made(self, first: Wanted, then: Wanted | None, second: bool) -> Share:
        trace = self._divided(first)
        calls, asked = trace.calls, _of(trace, first)
        mine = set(live_calls(calls, asked))
        here = [calls[i] for i in sorted(mine)]
        if then is None:
            return self._program(trace, here, asked, (), ())
        later = _of(trace, then)
        rest = [calls[i] for i in live_calls(calls, later) if i not in mine]
        left = {p.name for call in here for p in call.defined()}
        carried = tuple(p for p in free_values(rest, later) if p.name in left)
        if second:
            return self._program(trace, rest, later, carried, ())
        return self._program(trace, here, asked, (), carried)

    def _divided(self, first: Wanted) -> Trace:
        """The backward, where a call that has gradients of ``first`` and others has its parts."""
        part = self.part
        values = {p.name: p for p in part.backward.inputs}
        values.update((p.name, p) for call in part.backward.calls for p in call.flat_outs)
        editor = TraceEditor(part.backward)
        editor.append(*part.backward.calls)
        outputs = tuple(values[p.name] for p in part.gradients.values())
        trace = editor.done(outputs=outputs)
        while True:
            opened = self.rewrite(trace, _parts_of_calls(trace, first))
            if opened is trace:
                return trace
            trace = opened

    def _program(
        self,
        trace: Trace,
        calls: Sequence[BoundSymbol],
        gradients: tuple[Proxy, ...],
        takes: tuple[Proxy, ...],
        leaves: tuple[Proxy, ...],
    ) -> Share:
        read = {p.name for p in free_values(calls, (gradients, leaves))}
        # All tangents, read or not: they are what tells a backward from a forward.
        read |= {p.name for p in self.part.tangents}
        at = [i for i, p in enumerate(trace.inputs) if p.name in read]
        editor = TraceEditor(trace)
        editor.append(*calls)
        inputs = (*(trace.inputs[i] for i in at), *takes)
        made = editor.done(inputs=inputs, outputs=(gradients, leaves))
        return Share(self.compiled(f"some_{len(self.known)}", made), tuple(at))


def _of(trace: Trace, wanted: Wanted) -> tuple[Proxy, ...]:
    return tuple(itertools.compress(trace.outputs, wanted))


def _parts_of_calls(trace: Trace, wanted: Wanted) -> RuleTable[Any]:
    """Rules that inline a call of which ``wanted`` needs some results, and other gradients more."""
    needed = _read(trace, _of(trace, wanted))
    every = _read(trace, trace.outputs)

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        names = {p.name for p in call.flat_outs}
        some = names & needed
        divides = bool(some) and some != names & every and edit.can_inline()
        return edit.inline() if divides else None

    rules: RuleTable[Any] = RuleTable("parts of calls")
    rules.set("*", rule)
    return rules


def _read(trace: Trace, outputs: tuple[Proxy, ...]) -> set[str]:
    """Names of ``outputs``, and of the values that they are computed from."""
    calls = (trace.calls[i] for i in live_calls(trace.calls, outputs))
    return {p.name for p in outputs} | {p.name for call in calls for p in call.flat_args}


_Key = tuple[Wanted, Wanted | None, bool]


def _placed(wanted: Wanted, found: Sequence[Any]) -> list[Any]:
    left = iter(found)
    return [next(left) if is_wanted else None for is_wanted in wanted]
