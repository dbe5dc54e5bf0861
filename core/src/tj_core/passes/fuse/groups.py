"""Groups: calls that can run together, and the order of groups and single calls.

Each call gets a slot. A slot is a level, and within the level the groups of executors come before
all single calls. No call has an earlier slot than the values that it reads, so groups are convex.
Apart from this, calls stay near their place in the program: the open group takes the calls that can
join it, and a call that need not wait for the group runs right before it. No call passes one that
writes or is a side effect, or that has the tag `FENCE`.

A view takes no time and no memory, so it belongs to no group: each region that reads a view makes
the view again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tj_core.analysis.alias import makes_views
from tj_core.ir.effects import in_one_order
from tj_core.ir.proxy import Device, NumberProxy, TensorProxy
from tj_core.ir.tags import FENCE

if TYPE_CHECKING:
    from tj_core.ir.symbol import Context
    from tj_core.ir.trace import BoundSymbol

__all__ = [
    "Group",
    "Owner",
    "Unit",
    "devices_of",
    "grouped",
    "is_barrier",
    "is_fence",
    "is_free_view",
]


class Owner(NamedTuple):
    """The owner of a group: calls stand in one group only if their owners are equal.

    ``executor`` is the name of an executor that fuses, ``context`` the context of the calls,
    ``devices`` the devices that they compute on: one, or two for a copy between devices.
    """

    executor: str
    context: Context
    devices: frozenset[Device]


def devices_of(call: BoundSymbol) -> frozenset[Device]:
    """The devices that ``call`` computes on; none for a call on numbers alone.

    A zero-dimensional argument does not count beside the results: PyTorch lets it be on the CPU.
    """
    made = {p.device for p in call.flat_outs if isinstance(p, TensorProxy)}
    taken = [p for p in call.flat_args if isinstance(p, TensorProxy)]
    return frozenset(made | {p.device for p in taken if p.shape or not made})


_Slot: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of one executor that can run as one, in program order, without views."""

    owner: Owner
    calls: tuple[BoundSymbol, ...]


Unit: TypeAlias = "Group | BoundSymbol"


def is_free_view(call: BoundSymbol) -> bool:
    """Test for a call that only makes views of its one argument, numbers not counted."""
    viewed = {p.name for p in call.flat_args if not isinstance(p, NumberProxy)}
    return len(viewed) == 1 and makes_views(call) and call.effects.removable


def grouped(calls: Sequence[BoundSymbol], owners: Mapping[int, Owner]) -> list[Unit]:
    """``calls`` in a valid order, with groups of calls that can run as one.

    ``owners`` has the owner of each call that may stand in a group, by index.
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
    """The assignment of slots to calls. ``ranks``: the order of owners' groups in a level.

    ``made`` has the slot in which a value is made. ``free`` has, for a view, the slot from which on
    the groups of an owner can make it again; for other owners it is made by its own call.
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
        """The slot from which on ``owner`` has a value; None for an input of the program."""
        maker, slot = self.free.get(name, (None, None))
        return slot if maker is not None and maker == owner else self.made.get(name)

    def by_itself(self, call: BoundSymbol, needed: _Slot) -> _Slot:
        """The slot of a single call: right before the open group, unless it must wait for it."""
        level = max(needed[0], self.top - 1, self.floor - 1)
        level = max([level, *self.before(call)])
        if is_barrier(call):
            level = max(level, self.top)
            self.floor = level + 1
        self.ordered.update(dict.fromkeys(call.effects.ordered, level))
        return level, self.alone

    def before(self, call: BoundSymbol) -> list[int]:
        """The levels of calls before that ``call`` must not pass."""
        own = call.effects.ordered
        if not own:
            return []
        known = self.ordered.items()
        return [level for name, level in known if any(in_one_order(name, o) for o in own)]

    def in_group(self, owner: Owner, needed: _Slot) -> _Slot:
        """The slot of a call in a group: the open one, unless it needs a later value."""
        rank = self.ranks[owner]
        level = needed[0] if needed[1] <= rank else needed[0] + 1
        mine = self.open.get(owner, 0)
        near = mine if mine >= self.top - 1 else self.top
        level = max(level, near, self.floor)
        self.open[owner] = level
        self.top = max(self.top, level)
        return level, rank


def is_fence(call: BoundSymbol) -> bool:
    """Test for a call that stands in no group, and that no group reaches across."""
    return FENCE in call.tags


def is_barrier(call: BoundSymbol) -> bool:
    """Test for a call that no other call may be moved across."""
    effects = call.effects
    acts = effects.mutates or effects.rebinds or "side_effect" in effects.ordered
    return bool(acts) or is_fence(call)
