"""Groups: which calls can run together, and the order in which everything runs.

Each call runs in a slot: a level, and in the level the groups of the executors before all calls
that run alone. A call is never in an earlier slot than what it needs, so groups are convex. Within
that, calls stay near their place in the program: a group that is open takes the calls that can join
it, and what need not wait for it runs right before.

A view takes no time and no memory, so it belongs to no group: whoever reads one makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tj_core.analysis.alias import makes_views
from tj_core.ir.proxy import Device, NumberProxy, TensorProxy
from tj_core.ir.symbol import Context
from tj_core.ir.trace import BoundSymbol

__all__ = ["Group", "Owner", "Unit", "devices_of", "grouped", "is_free_view"]


class Owner(NamedTuple):
    """Whose group a call may stand in. Calls in one group have the same.

    ``executor`` is the name of one that fuses, ``context`` what the calls run in, ``devices`` what
    they compute on: one, but for a copy from one to another.
    """

    executor: str
    context: Context
    devices: frozenset[Device]


def devices_of(call: BoundSymbol) -> frozenset[Device]:
    """The devices that ``call`` computes on; none for one that computes with numbers alone.

    A tensor of no dimensions may be on the CPU beside others: it is a number.
    """
    made = {p.device for p in call.flat_outs if isinstance(p, TensorProxy)}
    taken = [p for p in call.flat_args if isinstance(p, TensorProxy)]
    return frozenset(made | {p.device for p in taken if p.shape or not made})


_Slot: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of one executor that can run as one, in program order, views not among them."""

    owner: Owner
    calls: tuple[BoundSymbol, ...]


Unit: TypeAlias = "Group | BoundSymbol"


def is_free_view(call: BoundSymbol) -> bool:
    """Whether ``call`` does nothing but make views of its only value, numbers not counted."""
    viewed = {p.name for p in call.flat_args if not isinstance(p, NumberProxy)}
    return len(viewed) == 1 and makes_views(call) and call.effects.removable


def grouped(calls: Sequence[BoundSymbol], owners: Mapping[int, Owner]) -> list[Unit]:
    """``calls`` in an order that runs, those that can run as one in groups.

    ``owners`` has the executor of each call that may stand in a group, by place.
    """
    schedule = _Schedule({owner: rank for rank, owner in enumerate(dict.fromkeys(owners.values()))})
    members: dict[_Slot, list[int]] = {}
    for place, call in enumerate(calls):
        members.setdefault(schedule.slot(call, owners.get(place)), []).append(place)
    units: list[Unit] = []
    for slot in sorted(members):
        there = [calls[place] for place in members[slot]]
        owner = schedule.owner(slot)
        units += there if owner is None else [Group(owner, tuple(there))]
    return units


@dataclass
class _Schedule:
    """Gives each call its slot. ``ranks``: where the groups of an executor stand in a level.

    ``made`` says in which slot a value is there; ``free`` from which one on the groups of an owner
    can make a view themselves, which for all others is there when its call has run.
    """

    ranks: dict[Owner, int]
    made: dict[str, _Slot] = field(default_factory=dict)
    free: dict[str, tuple[Owner, _Slot]] = field(default_factory=dict)
    open: dict[Owner, int] = field(default_factory=dict)
    ordered: dict[str, int] = field(default_factory=dict)
    top: int = -1
    floor: int = 0

    @property
    def alone(self) -> int:
        """The rank of calls that run alone."""
        return len(self.ranks)

    def owner(self, slot: _Slot) -> Owner | None:
        return None if slot[1] == self.alone else list(self.ranks)[slot[1]]

    def slot(self, call: BoundSymbol, owner: Owner | None) -> _Slot:
        first: _Slot = (self.floor - 1, self.alone)
        ready = (self.ready(p.name, owner) for p in call.flat_args)
        needed = max((slot for slot in ready if slot is not None), default=first)
        if owner is None:
            slot = self.by_itself(call, needed)
        elif is_free_view(call):
            slot = max(needed, first)[0], self.alone
            self.free.update((p.name, (owner, needed)) for p in call.defined())
        else:
            slot = self.in_group(owner, needed)
        self.made.update((p.name, slot) for p in call.defined())
        return slot

    def ready(self, name: str, owner: Owner | None) -> _Slot | None:
        """The slot from which on ``owner`` has a value; None of one that nothing makes."""
        maker, slot = self.free.get(name, (None, None))
        return slot if maker is not None and maker == owner else self.made.get(name)

    def by_itself(self, call: BoundSymbol, needed: _Slot) -> _Slot:
        """As late as it can be before the group that is open, if it need not wait for that."""
        level = max(needed[0], self.top - 1, self.floor - 1)
        level = max([level, *(self.ordered.get(name, -1) for name in call.effects.ordered)])
        if _is_barrier(call):
            level = max(level, self.top)
            self.floor = level + 1
        self.ordered.update(dict.fromkeys(call.effects.ordered, level))
        return level, self.alone

    def in_group(self, owner: Owner, needed: _Slot) -> _Slot:
        """In the group that is open, unless it needs what runs after that began."""
        rank = self.ranks[owner]
        level = needed[0] if needed[1] <= rank else needed[0] + 1
        mine = self.open.get(owner, 0)
        near = mine if mine >= self.top - 1 else self.top
        level = max(level, near, self.floor)
        self.open[owner] = level
        self.top = max(self.top, level)
        return level, rank


def _is_barrier(call: BoundSymbol) -> bool:
    """Whether everything before stays before it, and everything after it after."""
    effects = call.effects
    return bool(effects.mutates or effects.rebinds or "side_effect" in effects.ordered)
