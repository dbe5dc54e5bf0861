"""Choice of the values to save, by a minimum cut.

As in PyTorch's ``min_cut_rematerialization_partition``, every value of the forward is an edge whose
capacity is the cost of saving it. Values that the backward reads are cut off from calls that cannot
run again. Cheap operations (elementwise, views) may run again; a matrix product, a reduction to
something small, a random or ordered operation may not, unless a rule says so
(`tj_autograd.joint.repeatable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tj_core.extend import (
    BoundSymbol,
    Proxy,
    TagError,
    TensorProxy,
    makes_views,
    storage_roots,
    substituted,
)
from tj_torch.extend import byte_size
from tj_torch.internal import OVERWRITTEN

from tj_autograd.joint.repeatable import Repeats, together
from tj_autograd.split.mincut import INFINITE, Network, Solved

__all__ = ["DEPTHS", "Cheap", "Choice", "Forward", "Terms", "storages", "unsaved"]

Cheap = Callable[[BoundSymbol], bool]
"""Tests if a call is cheap to recompute."""

# The number in `get_node_weight` of torch/_functorch/partitioners.py.
DISTANCE = 1.1
"""Factor on the cost of a value for each call between it and the backward."""

DEPTHS = (None, 8, 4, 2, 1, 0, -1)
"""Limits on the recomputed chain that are tried: the lower, the less is recomputed and the more
saved.
"""

OVERWRITTEN_COST = 1 << 50
"""Extra cost of a value whose memory the program writes later: PyTorch refuses to use it."""

STARTED_COST = 1 << 50
"""Extra cost of a value that a call has started to write, and another one waits for."""

AGAIN = ("RECOMPUTE", "PREFER_RECOMPUTE")
"""Tags that ask for a call to run again, whatever it costs."""

# The number in `should_ban_recomputation` of partitioners.py: "output_size * 4 <
# input_tensors_size".
SHRINKS = 4
"""A call whose arguments have over this many times the bytes of its results is not recomputed."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Weights of a cut beside the bytes of a value.

    Calls whose labels are in ``free`` may run again whatever they cost. Values in ``inside`` would
    exist only inside fused kernels: to save one costs twice, since it is written to memory only for
    that. With ``tight``, bytes alone count, and inputs, which belong to the caller, cost next to
    nothing.
    """

    free: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()
    tight: bool = False


@dataclass(frozen=True)
class Forward:
    """Calls of a forward, and facts that all choices of saved values share.

    ``needed`` are the names of the values that the backward reads. ``once`` are labels of calls
    that are never recomputed, whatever their tags: executors keep state for them. ``repeats`` is
    the rule of an ordered call that may run again. ``decided`` are labels of calls whose results
    are compared to the last bit: they are not computed again, unless a tag asks for it.
    """

    inputs: tuple[Proxy, ...]
    calls: tuple[BoundSymbol, ...]
    needed: frozenset[str]
    once: frozenset[str] = frozenset()
    repeats: Repeats = field(default=lambda _: None, repr=False, compare=False)
    decided: frozenset[str] = frozenset()
    solved: Solved = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def maker(self) -> Mapping[str, BoundSymbol]:
        """The call that makes each value."""
        return {p.name: call for call in self.calls for p in call.defined()}

    @cached_property
    def distances(self) -> Mapping[str, int]:
        """Number of calls between each value and the nearest needed one that depends on it."""
        return _distances(self.calls, self.needed)

    @cached_property
    def wanted(self) -> Mapping[str, Proxy]:
        """Values that needed ones depend on."""
        values = (*self.inputs, *(p for call in self.calls for p in call.defined()))
        return {p.name: p for p in values if p.name in self.distances}

    @cached_property
    def roots(self) -> Mapping[str, str]:
        """The value in whose memory each value is, by name."""
        return storage_roots(self.calls)

    @cached_property
    def bases(self) -> Mapping[str, Proxy]:
        """The base of each view of a value that a call makes."""
        return _bases(self.roots, _made(self.calls))

    @cached_property
    def viewed(self) -> Mapping[str, Proxy]:
        """The input that each view of an input is of."""
        return _bases(self.roots, self.inputs)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes that saving each wanted value keeps in memory: for a view, those of its base."""
        return {n: byte_size(substituted(p, self.bases)) for n, p in self.wanted.items()}

    @cached_property
    def units(self) -> Mapping[str, tuple[BoundSymbol, ...]]:
        """The calls that run again together with an ordered call, by its label."""
        return together(self.calls, self.repeats)

    def unit(self, call: BoundSymbol) -> tuple[BoundSymbol, ...]:
        """The calls that run again if ``call`` does; none if it must not."""
        effects = call.effects
        # A second write would find what the first one has written.
        if effects.mutates or effects.rebinds:
            return ()
        return self.units.get(call.label, ()) if effects.ordered else (call,)

    def started(self, p: Proxy, call: BoundSymbol | None) -> bool:
        """Check that ``p`` is not complete before another call has waited for it."""
        unit = () if call is None else self.units.get(call.label, ())
        return p.name not in self.needed and len(unit) > 1 and unit[0] is call

    def saved(
        self,
        cheap: Cheap,
        depth: int | None = None,
        within: frozenset[str] | None = None,
        terms: Terms = Terms(),
    ) -> frozenset[str]:
        """Choose the names of the values to save, inputs included, at minimum cost.

        Calls that are ``cheap`` may run again, within ``depth`` calls of what the backward reads,
        if that is given. Only values in ``within`` are saved. ``terms`` holds further weights.

        :raises TagError: if tags forbid every way to provide a needed value.
        """
        return self.choice(cheap, within, terms).saved(depth)

    def choice(
        self, cheap: Cheap, within: frozenset[str] | None = None, terms: Terms = Terms()
    ) -> Choice:
        """Make the choices of `saved` for several depths, which share their costs."""
        return Choice(self, cheap, within, terms)


@dataclass
class Choice:
    """Flow networks of several depths: an edge for each wanted value, and edges from the source to
    fixed ones.
    """

    program: Forward
    cheap: Cheap
    within: frozenset[str] | None
    terms: Terms
    found: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)
    """Chosen names by the values that are fixed, which is all that depths decide."""
    again: dict[int, bool] = field(default_factory=dict)
    """Answers of `may_run_again` by the identity of a call, which the program keeps."""

    def saved(self, depth: int | None = None) -> frozenset[str]:
        """Choose as `Forward.saved` does."""
        maker = self.program.maker
        values = self.program.wanted.items()
        fixed = frozenset(n for n, p in values if self.is_fixed(p, maker.get(n), depth))
        if fixed not in self.found:
            self.found[fixed] = self.cut(fixed)
        return self.found[fixed]

    @cached_property
    def capacities(self) -> Mapping[str, int]:
        """Cost of saving each wanted value."""
        maker = self.program.maker
        return {n: self.capacity(p, maker.get(n)) for n, p in self.program.wanted.items()}

    def cut(self, fixed: frozenset[str]) -> frozenset[str]:
        """Choose the names if the values in ``fixed`` are not recomputed."""
        program, network = self.program, Network(self.program.solved)
        wanted, maker = program.wanted, program.maker
        for name in wanted:
            call = maker.get(name)
            start = "source" if name in fixed else ("in", name)
            network.edge(start, ("out", name), self.capacities[name])
            if name in program.needed:
                network.edge(("out", name), "sink", INFINITE)
            if name not in fixed and call is not None:
                for argument in call.flat_args:
                    network.edge(("out", argument.name), ("in", name), INFINITE)
        if not program.needed & wanted.keys():
            return frozenset()
        side = network.source_side("source", "sink")
        if side is None:
            # The only cut has an infinite edge: a value that must not be saved cannot run again
            # either.
            raise _impossible(wanted, maker, self.may_run_again)
        reached = (name for name in wanted if name in fixed or ("in", name) in side)
        return frozenset(name for name in reached if ("out", name) not in side)

    def is_fixed(self, p: Proxy, call: BoundSymbol | None, depth: int | None) -> bool:
        """Check that ``p`` is not recomputed within ``depth``."""
        return (
            call is None
            or "SAVE" in p.tags
            or self.too_deep(call, self.program.distances[p.name], depth)
            or not self.may_run_again(call)
        )

    def capacity(self, p: Proxy, call: BoundSymbol | None) -> int:
        """Cost of saving ``p``; infinite if it may not be saved."""
        possible = self.within is None or p.name in self.within
        return self.cost(p, call) if possible else INFINITE

    def cost(self, p: Proxy, call: BoundSymbol | None) -> int:
        """Cost of saving ``p``; infinite for a soft tag only if the call can run again."""
        soft = call is not None and "PREFER_RECOMPUTE" in call.tags and "SAVE" not in p.tags
        if soft and self.may_run_again(call):  # type: ignore[arg-type]
            return INFINITE
        distance = 0 if self.terms.tight else self.program.distances[p.name]
        cost = _cost(p, call, distance, self.program.sizes[p.name])
        if cost >= INFINITE:
            return cost
        if self.keeps_again(p, call) or self.is_made_again(p, call):
            return INFINITE
        if self.program.started(p, call):
            return cost + STARTED_COST
        if self.terms.tight and call is None:
            return 1
        return 2 * cost if p.name in self.terms.inside else cost

    def too_deep(self, call: BoundSymbol, distance: int, depth: int | None) -> bool:
        """Check that ``call`` is too far from what the backward reads to run again."""
        if depth is None or distance <= depth or unsaved(call):
            return False
        # A view moves no data, so that it costs nothing to make it again.
        return not makes_views(call) and not self.asked(call)

    def keeps_again(self, p: Proxy, call: BoundSymbol | None) -> bool:
        """Check that ``p`` views what a call that is to run again returns: it would keep that."""
        base = self.program.bases.get(p.name)
        made = None if base is None else self.program.maker.get(base.name)
        if call is None or made is None or "SAVE" in p.tags or made.label not in self.program.units:
            return False
        return _tagged(made, "RECOMPUTE") and self.may_run_again(made) and self.may_run_again(call)

    def is_made_again(self, p: Proxy, call: BoundSymbol | None) -> bool:
        """Check that ``p`` views an input, for what runs again: the input is as good to save.

        PyTorch refuses a saved view once its base is written, also where eager saves neither.
        """
        base = self.program.viewed.get(p.name)
        if call is None or base is None or p.name in self.program.needed or "SAVE" in p.tags:
            return False
        return self.may_run_again(call) and self.capacity(base, None) < INFINITE

    def asked(self, call: BoundSymbol) -> bool:
        """Check that a tag asks for ``call`` to run again, or for one that runs with it."""
        return any(_tagged(c, *AGAIN) for c in (self.program.unit(call) or (call,)))

    def may_run_again(self, call: BoundSymbol) -> bool:
        """Check that ``call``, and what runs with it, may run again."""
        if id(call) not in self.again:
            self.again[id(call)] = self._may_run_again(call)
        return self.again[id(call)]

    def _may_run_again(self, call: BoundSymbol) -> bool:
        unit = self.program.unit(call)
        if not unit or any(c.label in self.program.once for c in unit):
            return False
        if any(not c.tags.keys().isdisjoint(("SAVE", "PREFER_SAVE")) for c in unit):
            return False
        if self.asked(call):
            return True
        if call.label in self.program.decided and not unsaved(call):
            return False
        if any(c.label in self.terms.free for c in unit):
            return not call.executor
        return all(self.cheap(c) and not _shrinks(c) for c in unit)


def _tagged(call: BoundSymbol, *tags: str) -> bool:
    return any(tag in call.tags or any(tag in p.tags for p in call.flat_outs) for tag in tags)


def unsaved(call: BoundSymbol) -> bool:
    """Check that a tag forbids to save a result of ``call``."""
    return any("DONT_SAVE_FOR_BACKWARD" in p.tags for p in call.flat_outs)


def _distances(forward: tuple[BoundSymbol, ...], needed: frozenset[str]) -> dict[str, int]:
    """Number of calls between each value and the nearest needed one that depends on it."""
    # From the last call to the first, so that every reader of a value comes before its maker.
    found = dict.fromkeys(needed, 0)
    for call in reversed(forward):
        here = [found[p.name] for p in call.flat_outs if p.name in found]
        if here:
            for p in call.flat_args:
                found[p.name] = min(found.get(p.name, 1 << 30), min(here) + 1)
    return found


def _cost(p: Proxy, call: BoundSymbol | None, distance: int, size: int) -> int:
    again = call is not None and _tagged(call, "RECOMPUTE") and "SAVE" not in p.tags
    if "DONT_SAVE_FOR_BACKWARD" in p.tags or again:
        return INFINITE
    # The limit of 100 is that of partitioners.py, too.
    cost = max(1, int(size * DISTANCE ** min(distance, 100)))
    return cost + (OVERWRITTEN_COST if OVERWRITTEN.name in p.tags else 0)


def storages(forward: Iterable[BoundSymbol]) -> dict[str, Proxy]:
    """Map each view of a forward value to that value, its base, which saving the view keeps."""
    calls = tuple(forward)
    return _bases(storage_roots(calls), _made(calls))


def _bases(roots: Mapping[str, str], values: Iterable[Proxy]) -> dict[str, Proxy]:
    """Map each view to its base, where that is one of ``values``."""
    known = {p.name: p for p in values}
    return {name: known[root] for name, root in roots.items() if name != root and root in known}


def _made(calls: Iterable[BoundSymbol]) -> Iterator[Proxy]:
    return (p for call in calls for p in call.flat_outs)


def _shrinks(call: BoundSymbol) -> bool:
    taken = sum(byte_size(p) for p in call.flat_args if isinstance(p, TensorProxy))
    made = sum(byte_size(p) for p in call.flat_outs if isinstance(p, TensorProxy))
    return made * SHRINKS < taken


def _impossible(
    values: Mapping[str, Proxy],
    maker: Mapping[str, BoundSymbol],
    may_run_again: Callable[[BoundSymbol], bool],
) -> TagError:
    """Make the error for a value that tags forbid to save and that cannot run again."""
    for name, p in values.items():
        call = maker.get(name)
        refusal = call is None or not may_run_again(call)
        if refusal and _cost(p, call, 0, 1) >= INFINITE:
            what = "is an input" if call is None else f"comes from {call.symbol}"
            return TagError(
                f"{name!r} is needed by the backward and must not be saved, but {what}, "
                "which cannot run again",
                source=call.source if call else None,
                hint="take the tag off, or compute the value from others that may be saved",
            )
    return TagError("the tags leave no way to have what the backward needs")
