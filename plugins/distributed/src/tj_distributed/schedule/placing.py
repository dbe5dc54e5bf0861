"""The order of calls in which communication takes place beside computation.

What computes keeps its order. Between these calls, starts come as early as they may, and waits as
late: a list scheduler, which goes through the program once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tj_torch.extend import byte_size

from tj_distributed.schedule.roles import Roles, known

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

__all__ = ["Limits", "placed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on gathers of a group that have started and are not waited for.

    Beside the one that is waited for next, ``prefetch`` of them; of ``in_flight`` bytes together,
    if that is not None. One that is needed now starts in any case.
    """

    prefetch: int = 1
    in_flight: float | None = None


def placed(calls: Sequence[BoundSymbol], limits: Limits, *, fixed: bool) -> list[BoundSymbol]:
    """``calls`` in the order in which they are to run.

    - A gather of the program's inputs starts before the wait of an earlier one, as ``limits``
      allow; the calls that prepare it run right before it.
    - Another start comes right after the last call whose value it needs.
    - A wait comes right before the first call that reads its result.
    - Collectives of one group keep their order if it is ``fixed``. Otherwise gathers of inputs keep
      theirs, and all others theirs; a gather may pass a reduction.
    """
    roles = Roles(calls)
    if not roles.starts and not roles.gathers:
        return list(calls)
    return [calls[place] for place in _Placing(roles, limits, fixed).run()]


@dataclass
class _Placing:
    """A run of the scheduler. ``order`` are the calls so far, by index.

    ``missing`` has for each start the calls that it still needs, ``before`` the start that it must
    not pass. ``queues`` are the gathers of each group that have not started, ``flying`` those that
    have, and are not waited for. ``ready`` are other starts that nothing is missing for;
    ``chained`` are those that need the result of another collective, ``due`` such that only have to
    wait for it: they do so when the next one starts, since until then there is time.
    """

    roles: Roles
    limits: Limits
    fixed: bool
    order: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    missing: dict[int, set[int]] = field(default_factory=dict)
    needed_by: dict[int, list[int]] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    queues: dict[str, deque[int]] = field(default_factory=dict)
    flying: dict[str, set[int]] = field(default_factory=dict)
    ready: deque[int] = field(default_factory=deque)
    chained: set[int] = field(default_factory=set)
    due: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find what each start needs: calls that make its values, the start before, a barrier."""
        last: dict[tuple[str, bool], int] = {}
        barrier: int | None = None
        for i in range(len(self.roles.calls)):
            if i in self.roles.barriers:
                barrier = i
            if i not in self.roles.around:
                continue
            group, gather = self.roles.group(i), i in self.roles.gathers
            needs = self._values(i)
            key = group, gather and not self.fixed
            if key in last:
                self.before[i] = last[key]
                needs.add(last[key])
            if barrier is not None:
                needs.add(barrier)
            last[key] = i
            self.missing[i] = needs
            for need in needs:
                self.needed_by.setdefault(need, []).append(i)
            if gather:
                self.queues.setdefault(group, deque()).append(i)
            elif not needs:
                self.ready.append(i)

    def _values(self, start: int) -> set[int]:
        """The calls, other than those which go with it or can come later, that ``start`` needs."""
        roles, found, seen = self.roles, set[int](), set[int]()
        left = [start]
        while left:
            for maker in roles.reads[left.pop()]:
                if maker in seen:
                    continue
                seen.add(maker)
                if maker in roles.later:
                    self.chained.add(start)
                    left.append(maker)
                elif maker in roles.around[start]:
                    left.append(maker)
                else:
                    found.add(maker)
        return found

    def run(self) -> list[int]:
        """The order."""
        roles = self.roles
        moved = roles.around.keys() | roles.later | roles.before
        self.settle()
        for i in range(len(roles.calls)):
            if i in roles.barriers:
                self.emit_all(range(i))
            if i not in moved:
                self.emit(i)
                self.settle()
        self.emit_all(self.due)
        self.emit_all(range(len(roles.calls)))
        return self.order

    def emit_all(self, places: Iterable[int]) -> None:
        """Append the calls of ``places`` that are left, in order."""
        for place in places:
            self.emit(place)

    def emit(self, place: int) -> None:
        """Append a call, after the calls that make its arguments."""
        if place in self.done:
            return
        self.emit_all(self._passed(place))
        for maker in self.roles.reads[place]:
            self.emit(maker)
            self.land(maker)
        if place in self.done:  # a gather may have started before the wait of another one
            return
        self.done.add(place)
        self.order.append(place)
        if place in self.roles.gathers:
            self.flying.setdefault(self.roles.group(place), set()).add(place)
        for start in self.needed_by.get(place, ()):
            self.missing[start].discard(place)
            if not self.missing[start] and start in self.roles.starts:
                (self.due if start in self.chained else self.ready).append(start)

    def _passed(self, place: int) -> list[int]:
        """The starts that ``place`` must not pass and that are left, in order."""
        found = []
        while (place := self.before.get(place, -1)) >= 0 and place not in self.done:
            found.append(place)
        return found[::-1]

    def settle(self) -> None:
        """Start every collective of which nothing is missing."""
        while self.ready or self._fetched():
            while self.ready:
                start = self.ready.popleft()
                due = [] if start in self.chained else self.due
                self.due = self.due if start in self.chained else []
                self.emit(start)
                self.ready += due

    def _fetched(self) -> bool:
        """Start gathers; True if there was one to start."""
        known = len(self.order)
        for group in self.queues:
            self.fetch(group)
        return len(self.order) > known

    def land(self, start: int) -> None:
        """Note that a gather is about to be waited for; others may start before that."""
        group = self.roles.group(start) if start in self.roles.gathers else None
        if group is not None and start in self.flying.get(group, ()):
            self.flying[group].discard(start)
            self.fetch(group)

    def fetch(self, group: str) -> None:
        """Start the next gathers of ``group``, as the limits allow."""
        queue, flying = self.queues[group], self.flying.setdefault(group, set())
        while True:
            while queue and queue[0] in self.done:
                queue.popleft()
            if not queue or self.missing[queue[0]] or not self._fits(queue[0], flying):
                return
            self.emit(queue.popleft())

    def _fits(self, start: int, flying: set[int]) -> bool:
        if len(flying) > self.limits.prefetch:
            return False
        sizes = (self._size(other) for other in (start, *flying))
        return self.limits.in_flight is None or sum(sizes) <= self.limits.in_flight

    def _size(self, start: int) -> int:
        """Bytes that a gather returns, those of symbols not counted: ranks may know others."""
        made = self.roles.calls[start].flat_outs
        return sum(byte_size(p) for p in made if known(p))
