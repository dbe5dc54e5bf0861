"""SPLIT: a joint trace becomes a forward and a backward, and values saved between them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    Proxy,
    Stage,
    Symbol,
    TagError,
    Trace,
    TraceEditor,
    TraceError,
    dependent_values,
    detached,
    free_values,
    leaves,
    live_calls,
    makes_views,
    requires_grad,
    substituted,
    value_names,
)
from tj_torch.extend import byte_size
from tj_torch.internal import decided

from tj_autograd.split.arithmetic import arithmetic, memory
from tj_autograd.split.budget import fewest_again, may_be_freed
from tj_autograd.split.kernels import within_kernels
from tj_autograd.split.partition import DEPTHS, Choice, Forward, Terms, storages, unsaved
from tj_autograd.split.peak import peak_bytes

if TYPE_CHECKING:
    from tj_autograd.joint.build import Layout
    from tj_autograd.joint.segments import Cut
    from tj_autograd.split.costs import Costs

__all__ = ["Halves", "Part", "is_backward", "split"]


@dataclass(frozen=True, slots=True)
class Part:
    """Backward of one segment.

    It takes the ``saved`` values and the ``tangents`` of the segment's outputs. ``gradients`` maps
    the name of each value that gets a gradient to the backward's value for it.
    """

    backward: Trace
    saved: tuple[Proxy, ...]
    tangents: tuple[Proxy, ...]
    gradients: dict[str, Proxy]


@dataclass(frozen=True, slots=True)
class Halves:
    """Programs of a joint trace: a forward, and a backward for each segment.

    ``forward`` takes the inputs and returns three tuples: ``roots``, the values that have a
    tangent; ``rest``, the other results of the program; ``saved``, the values that a backward
    reads. ``outputs`` is the result of the user's program in terms of inputs, roots and rest.
    """

    forward: Trace
    outputs: Any
    roots: tuple[Proxy, ...]
    rest: tuple[Proxy, ...]
    saved: tuple[Proxy, ...]
    parts: tuple[Part, ...]

    @property
    def flexible(self) -> frozenset[str]:
        """Names of saved values that only a backward sees, so that their layout is free."""
        seen = value_names((self.forward.inputs, self.roots, self.rest, self.outputs))
        return frozenset(p.name for p in self.saved if p.name not in seen)


def split(
    joint: Trace,
    costs: Costs,
    budget: float = 1.0,
    within: frozenset[str] | None = None,
    cut: Cut | None = None,
    layout: Layout | None = None,
    prefer: str = "memory",
) -> Halves:
    """Split ``joint``, which was made with the same ``cut`` and ``layout``.

    Calls that are cheap by ``costs`` may be recomputed in the backward, to save less. Several ways
    are tried: the one with the lowest estimated peak of memory wins, then the one that saves the
    fewest bytes. With ``prefer="time"`` the one with the lowest estimated time wins. A ``budget``
    below 1 limits what is saved, inputs aside, to that part of the bytes that this way saves;
    expensive calls are recomputed then, as few as that takes. If ``within`` is given, only values
    named in it are saved.

    :raises TagError: if a value that the backward needs can be neither saved nor recomputed.
    """
    inputs = tuple(p for p in joint.inputs if not is_backward(p))
    tangents = tuple(p for p in joint.inputs if is_backward(p))
    return _Splitting(joint, inputs, tangents, costs, budget, within, cut, layout, prefer).halves()


TOLERANCE = 1.01
"""Factor below which two estimated peaks count as equal."""

FASTER = 6
"""Number of operations that may be excluded from recomputation in turn."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to split: the backward's ``calls``, the recomputed ones (``again``), and the ``saved``
    values.

    ``peak`` is the estimated peak of memory in bytes.
    """

    calls: tuple[BoundSymbol, ...]
    again: tuple[BoundSymbol, ...]
    gradients: Any
    saved: tuple[Proxy, ...]
    peak: int


@dataclass(frozen=True)
class _Splitting:
    """State of one split."""

    joint: Trace
    inputs: tuple[Proxy, ...]
    tangents: tuple[Proxy, ...]
    costs: Costs
    budget: float
    within: frozenset[str] | None
    cut: Cut | None
    layout: Layout | None
    prefer: str

    @cached_property
    def ahead(self) -> tuple[BoundSymbol, ...]:
        """Calls of the forward."""
        return tuple(c for c in self.joint.calls if not is_backward(c))

    @cached_property
    def back(self) -> list[BoundSymbol]:
        """Live calls of the backward."""
        calls = [c for c in self.joint.calls if is_backward(c)]
        return [calls[i] for i in live_calls(calls, self.joint.outputs[1])]

    def halves(self) -> Halves:
        outputs, _ = self.joint.outputs
        way = self.best() if self.budget >= 1 else self.tight()
        roots, rest = _returned(outputs, self.inputs)
        if self.cut is not None and not self.cut.whole:
            made = {p.name: p for call in self.ahead for p in call.flat_outs}
            # Every segment is a node of its own, whose outputs need tangents even inside of the
            # program.
            results = [p for ps in self.cut.outputs for p in ps]
            if lost := next((p.name for p in results if p.name not in made), None):
                raise TraceError(
                    f"no call defines {lost!r} any more, which a node of autograd returns",
                    hint="a transform of the joint trace keeps the names of the forward's values",
                )
            roots = tuple(made[p.name] for p in results)
        forward = self.half(self.joint.name, self.inputs, self.ahead, (roots, rest, way.saved))
        return Halves(forward, outputs, roots, rest, way.saved, tuple(self.parts(way)))

    def half(
        self, name: str, inputs: tuple[Proxy, ...], calls: Iterable[BoundSymbol], outputs: Any
    ) -> Trace:
        """Make a program of some of the calls, as it runs below autograd."""
        editor = TraceEditor(self.joint)
        editor.append(*calls)
        return detached(editor.done(inputs=inputs, outputs=outputs, name=name, stage=Stage.SPLIT))

    def parts(self, way: _Way) -> Iterator[Part]:
        """Yield the backward of each segment."""
        if self.cut is None or self.cut.whole:
            found = dict(zip((p.name for p in self.inputs), way.gradients, strict=True))
            yield self.part(way.calls, way.saved, self.tangents, way.gradients, found)
            return
        owners = self.cut.owners(self.layout)
        for index, gradients in enumerate(way.gradients):
            mine = tuple(t for t, k in zip(self.tangents, owners, strict=True) if k == index)
            calls = _of_segment(way.calls, gradients, mine)
            saved = tuple(free_values(calls, gradients, self.known))
            yield self.part(calls, saved, mine, gradients, gradients)

    def part(
        self,
        calls: Sequence[BoundSymbol],
        saved: tuple[Proxy, ...],
        tangents: tuple[Proxy, ...],
        outputs: Any,
        gradients: dict[str, Proxy | None],
    ) -> Part:
        backward = self.half("backward", (*saved, *tangents), calls, outputs)
        found = {name: p for name, p in gradients.items() if p is not None}
        return Part(backward, saved, tangents, found)

    def best(self) -> _Way:
        """Choose the way with the lowest peak, then the fewest bytes; or the fastest."""
        terms = Terms(inside=self.inside)
        depths = DEPTHS if self.within is None else DEPTHS[:1]
        # Several depths often choose the same values, and each choice is costly to examine.
        choices = dict.fromkeys(map(self.choice(terms).saved, depths))
        if self.inside:
            with contextlib.suppress(TagError):  # a value in memory is not among those in `within`
                choices[self.choice(terms, written=False).saved()] = None
        ways = [self.way(chosen) for chosen in choices]
        limit = min(way.peak for way in ways) * TOLERANCE
        least = min((w for w in ways if w.peak <= limit), key=self.weight)
        fast = self.prefer == "time" and self.within is None
        return min((least, *self.faster(least, terms)), key=self.seconds) if fast else least

    def faster(self, way: _Way, terms: Terms) -> Iterator[_Way]:
        """Yield ways, each with one more operation that is not recomputed: the slowest of the last
        way.
        """
        once: frozenset[Symbol] = frozenset()
        for _ in range(FASTER):
            spent: dict[Symbol, float] = {}
            for call in way.again:
                spent[call.symbol] = spent.get(call.symbol, 0.0) + self.once_more(call)
            slow = {s: seconds for s, seconds in spent.items() if seconds and s not in once}
            if not slow:
                return
            once |= {max(slow, key=slow.__getitem__)}
            way = self.way(self.choice(terms, once=once).saved())
            yield way

    def bytes(self, way: _Way) -> int:
        return sum(map(byte_size, self.kept(way)))

    def seconds(self, way: _Way) -> float:
        """Estimate the seconds that ``way`` takes for recomputation, and to write and read saved
        values.
        """
        # Twice: the forward writes what is saved, and the backward reads it.
        return sum(map(self.once_more, way.again)) + 2 * memory(self.bytes(way))

    def once_more(self, call: BoundSymbol) -> float:
        """Estimate the seconds to recompute ``call``: arithmetic
        alone, if it is in a fused kernel.
        """
        if makes_views(call) or self.costs.fuses(call):
            return arithmetic(call)
        values = {p.name: p for p in (*call.flat_args, *call.flat_outs)}.values()
        return arithmetic(call) + memory(sum(map(byte_size, values)))

    def weight(self, way: _Way) -> int:
        """Bytes that ``way`` saves; values that are written only to be saved count twice."""
        kept = self.kept(way)
        return sum(byte_size(p) * (2 if p.name in self.inside else 1) for p in kept)

    def kept(self, way: _Way) -> Collection[Proxy]:
        """Values that ``way`` keeps in memory, a view as its base."""
        return {p.name: p for p in substituted(way.saved, self.storages)}.values()

    @cached_property
    def storages(self) -> dict[str, Proxy]:
        return storages(self.ahead)

    def tight(self) -> _Way:
        """Find the way within the budget that recomputes the fewest expensive calls."""
        if self.within is not None:  # the forward is made: it saves these, and all may run again
            free = frozenset(c.label for c in self.ahead if may_be_freed(c, self.costs))
            return self.way(self.choice(Terms(free, tight=True)).saved())
        default = self.best()
        limit = self.budget * self.made(default)

        def freed(free: frozenset[str]) -> _Way:
            return self.way(self.choice(Terms(free, tight=True)).saved())

        if self.made(default) <= limit:
            return default
        return freed(fewest_again(self.ahead, self.costs, lambda f: self.made(freed(f)) <= limit))

    def made(self, way: _Way) -> int:
        """Bytes that ``way`` saves of values that the forward makes."""
        mine = {p.name for p in self.inputs}
        return sum(byte_size(p) for p in self.kept(way) if p.name not in mine)

    def choice(
        self, terms: Terms, written: bool = True, once: frozenset[Symbol] = frozenset()
    ) -> Choice:
        """Make the choice of the values to save, by minimum cuts.

        Without ``written``, a call whose result is in memory anyway is not recomputed. Where calls
        are fused, such a result lies between two kernels, and its recomputation takes all of the
        kernel that made it. Operations in ``once`` are not recomputed, unless a rule or a tag asks
        for it.
        """

        def cheap(call: BoundSymbol) -> bool:
            again = (
                written or makes_views(call) or all(p.name in self.inside for p in call.flat_outs)
            )
            said = self.costs.said(call) or unsaved(call)
            return again and (said or call.symbol not in once) and self.costs.cheap(call)

        return self.program.choice(cheap, self.within, terms)

    @cached_property
    def program(self) -> Forward:
        needed = free_values(self.back, self.joint.outputs[1], self.known)
        once = (call.label for call in self.ahead if self.costs.keeps_state(call))
        names = frozenset(p.name for p in needed)
        compared = decided(self.joint.calls, self.costs.rounds, is_backward)
        return Forward(
            self.inputs, self.ahead, names, frozenset(once), self.costs.repeats, compared
        )

    @cached_property
    def known(self) -> set[str]:
        return {p.name for p in self.tangents}

    @cached_property
    def inside(self) -> frozenset[str]:
        """Names of forward values that would exist only inside fused kernels."""
        return within_kernels(self.ahead, self.joint.outputs[0], self.costs)

    def way(self, chosen: frozenset[str]) -> _Way:
        outputs, gradients = self.joint.outputs
        again = _Recompute(self.ahead, chosen, TraceEditor(self.joint))
        calls, gradients = again.fill(self.back, gradients)
        saved = tuple(free_values(calls, gradients, self.known))
        returned = [*(p for p in leaves(outputs) if isinstance(p, Proxy)), *saved]
        left = [p for p in leaves(gradients) if isinstance(p, Proxy)]
        mine = {p.name for p in self.inputs}
        held = [p for p in returned if p.name not in mine]
        inside = self.inside - {p.name for p in held}
        inside |= within_kernels(calls, gradients, self.costs)
        peak = peak_bytes(self.ahead, held, calls, left, inside)
        return _Way(tuple(calls), tuple(again.repeated), gradients, saved, peak)


@dataclass
class _Recompute:
    """Inserts forward calls into the backward where their results are not saved."""

    forward: tuple[BoundSymbol, ...]
    saved: frozenset[str]
    editor: TraceEditor
    repeated: list[BoundSymbol] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.maker = {p.name: call for call in self.forward for p in call.defined()}

    def fill(self, back: Sequence[BoundSymbol], gradients: Any) -> tuple[list[BoundSymbol], Any]:
        """The backward with these calls, each before the first use
        of its result, and its outputs.
        """
        for call in back:
            for p in call.flat_args:
                self.provide(p)
            self.editor.append(self.editor.moved(call))
        for p in leaves(gradients):
            if isinstance(p, Proxy):
                self.provide(p)
        return self.editor.calls, self.editor.mapped(gradients)

    def provide(self, wanted: Proxy) -> None:
        """Repeat the calls that ``wanted`` needs; iterative, since chains may be long."""
        todo = [wanted]
        while todo:
            call = self.maker.get(todo[-1].name)
            if call is None or not self.missing(todo[-1]):
                todo.pop()
                continue
            missing = [p for p in call.flat_args if self.missing(p)]
            todo += missing
            if not missing:
                self.repeat(call)
                todo.pop()

    def missing(self, p: Proxy) -> bool:
        there = p.name in self.saved or p.name in self.editor.values
        return p.name in self.maker and not there

    def repeat(self, call: BoundSymbol) -> None:
        self.repeated.append(call)
        again = self.editor.renamed(call)
        for old, new in zip(call.defined(), again.defined(), strict=True):
            # A call with several results runs again for one of them; the others may have been
            # saved.
            if old.name not in self.saved:
                self.editor.values[old.name] = new
        again = self.editor.moved(again)
        self.editor.append(again.replace(tags=again.tags.add("BACKWARD"), parent=call.label))


def is_backward(carrier: Proxy | BoundSymbol) -> bool:
    """Check that a value or a call belongs to the backward."""
    return "BACKWARD" in carrier.tags


def _returned(outputs: Any, inputs: Sequence[Proxy]) -> tuple[tuple[Proxy, ...], tuple[Proxy, ...]]:
    """Distinct outputs that are no inputs: those that require grad, and the others."""
    known = {p.name for p in inputs}
    found = {p.name: p for p in leaves(outputs) if isinstance(p, Proxy) and p.name not in known}
    carrying = [p for p in found.values() if requires_grad(p)]
    others = [p for p in found.values() if not requires_grad(p)]
    return tuple(carrying), tuple(others)


def _of_segment(
    calls: Sequence[BoundSymbol], gradients: object, tangents: Sequence[Proxy]
) -> list[BoundSymbol]:
    """Calls that ``gradients`` depend on, and calls with effects that depend on ``tangents``."""
    reached = dependent_values(calls, [p.name for p in tangents])

    def acts(_: int, call: BoundSymbol) -> bool:
        return not call.effects.removable and any(p.name in reached for p in call.flat_args)

    return [calls[i] for i in live_calls(calls, gradients, acts)]
