"""Which values the forward saves for the backward, and which the backward computes again.

A minimum cut, as in PyTorch's ``min_cut_rematerialization_partition``: every value of the forward
is an edge, whose capacity is what saving it costs; what the backward reads must be cut off from
what cannot be computed again. Cheap operations (elementwise, views) may run again; a matrix
product, a reduction to something small, a random or ordered operation may not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tj_core.extend import (
    BoundSymbol,
    NumberProxy,
    OpaqueProxy,
    Proxy,
    TagError,
    TensorProxy,
    makes_views,
    storage_roots,
    substituted,
)
from tj_torch.extend import OVERWRITTEN

from tj_autograd.split.mincut import INFINITE, Network, Solved

__all__ = ["DEPTHS", "Cheap", "Forward", "Terms", "byte_size", "storages", "unsaved"]

Cheap = Callable[[BoundSymbol], bool]
"""Whether a call costs next to nothing to run again."""

DISTANCE = 1.1
"""What a value costs more for each call between it and the backward."""

DEPTHS = (None, 8, 4, 2, 1, 0, -1)
"""Limits that a partition is tried with: less to run again, more to save."""

OVERWRITTEN_COST = 1 << 50
"""What a value costs more whose memory the program writes to later: PyTorch refuses to use it."""

AGAIN = ("RECOMPUTE", "PREFER_RECOMPUTE")
"""Tags that ask for a call to be run again, whatever it costs."""

SHRINKS = 4
"""A call whose result is that many times smaller than its arguments does not run again."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What counts beside the bytes of a value.

    Calls whose labels are in ``free`` may run again whatever they cost. Values in ``inside`` would
    exist only within fused kernels: saving one writes it to memory, which costs as much again. With
    ``tight``, bytes alone count, and inputs, which belong to the caller, cost next to nothing.
    """

    free: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()
    tight: bool = False


@dataclass(frozen=True)
class Forward:
    """The calls of a forward, and what the choices of values to save have in common.

    ``needed`` are the names of the values that the backward reads, ``once`` the labels of calls
    that run once whatever tags say, since executors keep something for them.
    """

    inputs: tuple[Proxy, ...]
    calls: tuple[BoundSymbol, ...]
    needed: frozenset[str]
    once: frozenset[str] = frozenset()
    solved: Solved = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def maker(self) -> Mapping[str, BoundSymbol]:
        """The call that makes each value."""
        return {p.name: call for call in self.calls for p in call.defined()}

    @cached_property
    def distances(self) -> Mapping[str, int]:
        """For each value that needed ones depend on, the calls between it and the nearest."""
        return _distances(self.calls, self.needed)

    @cached_property
    def wanted(self) -> Mapping[str, Proxy]:
        """The values that needed ones depend on."""
        values = (*self.inputs, *(p for call in self.calls for p in call.defined()))
        return {p.name: p for p in values if p.name in self.distances}

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The bytes that saving a wanted value keeps in memory: for a view, all that it views."""
        viewed = storages(self.calls)
        return {name: byte_size(substituted(p, viewed)) for name, p in self.wanted.items()}

    def saved(
        self,
        cheap: Cheap,
        depth: int | None = None,
        within: frozenset[str] | None = None,
        terms: Terms = Terms(),
    ) -> frozenset[str]:
        """The names of the values to save, inputs included, so that needed ones are at hand.

        Calls that are ``cheap`` may run again, within ``depth`` calls of what the backward reads,
        if that is given, and only values in ``within`` are saved. ``terms`` say what else counts.

        :raises TagError: if tags leave no way to have a value.
        """
        network = Network(self.solved)
        return _Choice(self, cheap, depth, within, terms, network).saved()


@dataclass
class _Choice:
    """One network: an edge for each wanted value, from the source what cannot run again."""

    program: Forward
    cheap: Cheap
    depth: int | None
    within: frozenset[str] | None
    terms: Terms
    network: Network

    def saved(self) -> frozenset[str]:
        program, network = self.program, self.network
        wanted, maker = program.wanted, program.maker
        fixed = {name for name, p in wanted.items() if self.is_fixed(p, maker.get(name))}
        for name, p in wanted.items():
            call = maker.get(name)
            start = "source" if name in fixed else ("in", name)
            network.edge(start, ("out", name), self.capacity(p, call))
            if name in program.needed:
                network.edge(("out", name), "sink", INFINITE)
            if name not in fixed and call is not None:
                for argument in call.flat_args:
                    network.edge(("out", argument.name), ("in", name), INFINITE)
        if not program.needed & wanted.keys():
            return frozenset()
        side = network.source_side("source", "sink")
        if side is None:
            raise _impossible(wanted, maker, self.may_run_again)
        reached = (name for name in wanted if name in fixed or ("in", name) in side)
        return frozenset(name for name in reached if ("out", name) not in side)

    def is_fixed(self, p: Proxy, call: BoundSymbol | None) -> bool:
        """Whether nothing makes ``p`` again."""
        return (
            call is None
            or "SAVE" in p.tags
            or self.too_deep(call, self.program.distances[p.name])
            or not self.may_run_again(call)
        )

    def capacity(self, p: Proxy, call: BoundSymbol | None) -> int:
        possible = self.within is None or p.name in self.within
        return self.cost(p, call) if possible else INFINITE

    def cost(self, p: Proxy, call: BoundSymbol | None) -> int:
        """What saving ``p`` costs; the soft tag forbids it only where the call can run again."""
        soft = call is not None and "PREFER_RECOMPUTE" in call.tags and "SAVE" not in p.tags
        if soft and self.may_run_again(call):  # type: ignore[arg-type]
            return INFINITE
        distance = 0 if self.terms.tight else self.program.distances[p.name]
        cost = _cost(p, call, distance, self.program.sizes[p.name])
        if cost >= INFINITE:
            return cost
        if self.terms.tight and call is None:
            return 1
        return 2 * cost if p.name in self.terms.inside else cost

    def too_deep(self, call: BoundSymbol, distance: int) -> bool:
        if self.depth is None or distance <= self.depth or unsaved(call):
            return False
        return not makes_views(call) and not _tagged(call, *AGAIN)

    def may_run_again(self, call: BoundSymbol) -> bool:
        if call.effects.ordered or call.effects.mutates or call.effects.rebinds:
            return False
        if call.label in self.program.once:
            return False
        if not call.tags.keys().isdisjoint(("SAVE", "PREFER_SAVE")):
            return False
        if _tagged(call, *AGAIN):
            return True
        if call.label in self.terms.free:
            return not call.executor
        return self.cheap(call) and not _shrinks(call)


def _tagged(call: BoundSymbol, *tags: str) -> bool:
    return any(tag in call.tags or any(tag in p.tags for p in call.flat_outs) for tag in tags)


def unsaved(call: BoundSymbol) -> bool:
    """Whether a tag forbids to save something that ``call`` makes."""
    return any("DONT_SAVE_FOR_BACKWARD" in p.tags for p in call.flat_outs)


def _distances(forward: tuple[BoundSymbol, ...], needed: frozenset[str]) -> dict[str, int]:
    """For each value that needed ones depend on, the calls between it and the nearest of them."""
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
    cost = max(1, int(size * DISTANCE ** min(distance, 100)))
    return cost + (OVERWRITTEN_COST if OVERWRITTEN.name in p.tags else 0)


def storages(forward: Iterable[BoundSymbol]) -> dict[str, Proxy]:
    """For each view of a value that the forward makes, that value: what saving the view keeps."""
    calls = tuple(forward)
    made = {p.name: p for call in calls for p in call.flat_outs}
    roots = storage_roots(calls).items()
    return {name: made[root] for name, root in roots if name != root and root in made}


def byte_size(p: Proxy) -> int:
    """The memory of a value, in bytes; symbolic sizes count as their hints."""
    if isinstance(p, NumberProxy | OpaqueProxy):
        return 1
    assert isinstance(p, TensorProxy)
    sizes = (n if isinstance(n, int) else (n.hint or 1) for n in p.shape)
    return math.prod(sizes) * max(1, p.dtype.bits // 8)


def _shrinks(call: BoundSymbol) -> bool:
    taken = sum(byte_size(p) for p in call.flat_args if isinstance(p, TensorProxy))
    made = sum(byte_size(p) for p in call.flat_outs if isinstance(p, TensorProxy))
    return made * SHRINKS < taken


def _impossible(
    values: Mapping[str, Proxy],
    maker: Mapping[str, BoundSymbol],
    may_run_again: Callable[[BoundSymbol], bool],
) -> TagError:
    """The error for a value that tags forbid to save and that cannot run again."""
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
