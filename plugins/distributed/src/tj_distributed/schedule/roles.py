"""Roles of calls in a schedule: starts, waits, what prepares a start, and what can come later.

They follow from the program alone, not from sizes or estimates, so that ranks which compile one
program for different sizes give each call the same role.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tj_core.extend import BoundSymbol, Proxy, TensorProxy, makes_views
from tj_torch.extend import multiplies

from tj_distributed.sequence import PREFIX, TORCH_WAIT, described, starts

__all__ = ["COLLECTIVE", "Roles", "known"]

_GATHERS = tuple(
    f"{PREFIX}{name}.default"
    for name in ("all_gather_into_tensor", "all_gather_into_tensor_coalesced")
)
COLLECTIVE = "collective"
"""First part of the resources of starts; alone where a call does not name its group."""
_FIXED = ("side_effect", "stream")
"""Resources of calls that nothing moves across."""


def _is_gather(call: BoundSymbol) -> bool:
    """Test for a call that starts a gather."""
    return call.symbol.qualname in _GATHERS


def known(p: Proxy) -> bool:
    """Test for a value without sizes that are symbols."""
    return isinstance(p, TensorProxy) and all(isinstance(size, int) for size in p.shape)


@dataclass
class Roles:
    """The roles of ``calls``, by index.

    ``gathers`` are gathers of what the program is given, which can start at any time before their
    use. ``starts`` are all other starts. ``later`` are calls that only the end of the program, or
    a later call, has to wait for: waits, views of what they return, and what is computed of a
    reduction for the results alone. ``reduced`` are waits for starts, and light calls that need
    what these return. ``before`` are the calls that prepare a gather, such as a cast of a shard:
    they belong to it. ``around`` has for any start all such calls. Nothing crosses ``barriers``.
    """

    calls: Sequence[BoundSymbol]
    gathers: set[int] = field(default_factory=set)
    starts: set[int] = field(default_factory=set)
    later: set[int] = field(default_factory=set)
    reduced: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    around: dict[int, set[int]] = field(default_factory=dict)
    barriers: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for i, call in enumerate(self.calls):
            if _is_start(call):
                self.starts.add(i)
            elif _is_barrier(call):
                self.barriers.add(i)
        self.gathers = {i for i in self.starts if self._is_of_inputs(i)}
        self.starts -= self.gathers
        self.later = self._later()
        for i in sorted(self.starts | self.gathers):
            self.around[i] = self._prepares(i)
        for i in self.gathers:
            self.before |= self.around[i]

    def group(self, place: int) -> str:
        """The name of the group in which a start stands."""
        return self.groups[place]

    @cached_property
    def groups(self) -> dict[int, str]:
        """The group of each start."""
        return {i: described(self.calls[i]).group for i in self.gathers | self.starts}

    @cached_property
    def makers(self) -> dict[str, int]:
        """The call that makes each value, by name."""
        return {p.name: i for i, call in enumerate(self.calls) for p in call.defined()}

    @cached_property
    def reads(self) -> list[tuple[int, ...]]:
        """For each call, the calls whose values it reads."""
        found = []
        for call in self.calls:
            names = dict.fromkeys(p.name for p in call.flat_args)
            found.append(tuple(self.makers[name] for name in names if name in self.makers))
        return found

    @cached_property
    def users(self) -> list[list[int]]:
        """For each call, the calls that read its values."""
        found: list[list[int]] = [[] for _ in self.calls]
        for i, read in enumerate(self.reads):
            for maker in read:
                found[maker].append(i)
        return found

    @cached_property
    def light(self) -> list[bool]:
        """Flags of the calls that may be moved and cost little: no product, no effects."""
        return [call.effects.removable and not multiplies(call) for call in self.calls]

    def is_wait(self, place: int) -> bool:
        """Test for a wait of PyTorch's."""
        return self.calls[place].symbol.qualname == TORCH_WAIT

    def _is_of_inputs(self, place: int) -> bool:
        """Test for a gather of what light calls make of the program's inputs."""
        if not _is_gather(self.calls[place]):
            return False
        found, left = set[int](), [*self.reads[place]]
        while left:
            maker = left.pop()
            if not self.light[maker]:
                return False
            if maker not in found:
                found.add(maker)
                left += self.reads[maker]
        return True

    def _later(self) -> set[int]:
        found, reduced = set[int](), self.reduced
        for i, call in enumerate(self.calls):
            read = self.reads[i]
            if self.is_wait(i):
                found.add(i)
                if any(maker in self.starts for maker in read):
                    reduced.add(i)
            elif self.light[i] and makes_views(call) and any(maker in found for maker in read):
                found.add(i)
            if self.light[i] and any(maker in reduced for maker in read):
                reduced.add(i)
        for i in sorted(reduced - found, reverse=True):
            if all(user in found for user in self.users[i]):
                found.add(i)
        return found

    def _prepares(self, start: int) -> set[int]:
        """The light calls whose values only ``start`` needs."""
        found, left = {start}, [-maker for maker in self.reads[start]]
        heapq.heapify(left)  # the last first: a call comes after all that read its values
        while left:
            maker = -heapq.heappop(left)
            inside = self.light[maker] and maker not in self.later and maker not in found
            if inside and all(user in found for user in self.users[maker]):
                found.add(maker)
                for earlier in self.reads[maker]:
                    heapq.heappush(left, -earlier)
        return found - {start}


def _is_start(call: BoundSymbol) -> bool:
    """Test for the start of a collective of one group that writes to nothing."""
    effects = call.effects
    ordered = bool(effects.ordered) and COLLECTIVE not in effects.ordered
    return starts(call) and ordered and not (effects.mutates or effects.rebinds)


def _is_barrier(call: BoundSymbol) -> bool:
    effects = call.effects
    if effects.mutates or effects.rebinds or effects.copies_back:
        return True
    kinds = (resource.partition(":")[0] for resource in effects.ordered)
    return any(kind in _FIXED or kind == COLLECTIVE for kind in kinds)
