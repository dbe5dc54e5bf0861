"""The plan of fusion: the assignment of a claimed program's calls to groups.

The plan is made while calls are claimed. It shows which are in no group; these are claimed again
without fusion, so that the highest call around them runs as one. Its groups become regions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_core.contract.decline import ask, is_so
from tj_core.passes.fuse.differing import differing_views
from tj_core.passes.fuse.early_numbers import numbers_first
from tj_core.passes.fuse.groups import (
    Group,
    Owner,
    Unit,
    devices_of,
    grouped,
    is_fence,
    is_free_view,
)
from tj_core.passes.fuse.keys import call_token
from tj_core.passes.fuse.repeats import parts

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor
    from tj_core.contract.fusion import Fusion
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.trace import BoundSymbol

__all__ = ["Fusers", "Plan", "plan"]

DIFFERS = "equal parts of the program read different places of what it views"
"""Reason to make a view before the regions that read it."""


@dataclass(frozen=True)
class Fusers:
    """The executors that fuse, by name, in order.

    ``hosted`` are symbols of claimed calls whose implementation can be traced, so that they may
    stand in another executor's regions.
    """

    executors: Mapping[str, Executor]
    hosted: Collection[Symbol] = frozenset()

    @staticmethod
    def of(executors: Sequence[Executor], hosted: Collection[Symbol] = frozenset()) -> Fusers:
        """The executors among ``executors`` that fuse."""
        return Fusers({e.name: e for e in executors if e.fusion is not None}, hosted)

    def owner(self, call: BoundSymbol) -> Owner | None:
        """The owner of the groups that ``call`` may stand in, or None."""
        name = call.executor
        if name is not None and name in self.executors and call.symbol.namespace != name:
            return Owner(name, call.context, devices_of(call))
        if call.symbol in self.hosted:
            host = next((name for name in self.executors if self.fusion(name).hosts), None)
            return None if host is None else Owner(host, call.context, devices_of(call))
        return None

    def fusion(self, name: str) -> Fusion:
        """The `Fusion` record of executor ``name``."""
        fusion = self.executors[name].fusion
        assert fusion is not None
        return fusion

    def parts(
        self,
        name: str,
        calls: Sequence[BoundSymbol],
        token: Callable[[BoundSymbol], str],
        views: Mapping[str, BoundSymbol],
    ) -> Sequence[Sequence[BoundSymbol]]:
        """``calls`` whole, or cut into repeated parts, as executor ``name`` decides.

        :raises PluginError: if the executor's ``whole`` raises.
        """
        whole = self.fusion(name).whole
        owner = self.executors[name].owner
        if whole is not None and is_so(owner, lambda _: whole(calls), calls[0]):
            return [calls]
        return parts(calls, token, views)

    def refusal(self, name: str, calls: Sequence[BoundSymbol]) -> str | None:
        """Reason why executor ``name`` does not run ``calls`` as one region, or None.

        :raises PluginError: if the executor's ``check`` raises.
        """
        fusion = self.fusion(name)
        if len(calls) < fusion.minimum:
            return f"it needs {fusion.minimum} calls that compute, and has {len(calls)}"
        check = fusion.check
        if check is None:
            return None
        return ask(self.executors[name].owner, lambda _: check(calls), calls[0])


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups and single calls, ``units``, in a valid order.

    ``views`` are the views that regions can make again. ``refused`` are calls for regions that
    stand in no group, by label, each with the reason.
    """

    units: tuple[Unit, ...]
    views: Mapping[str, tuple[Owner, BoundSymbol]]
    refused: Mapping[str, str]


def plan(calls: Sequence[BoundSymbol], fusers: Fusers) -> Plan:
    """The plan for ``calls``.

    :raises PluginError: if an executor's check of a group raises.
    """
    calls = numbers_first(calls)
    owners = _owners(calls, fusers)
    views = {
        p.name: (owner, calls[i])
        for i, owner in owners.items()
        if is_free_view(calls[i])
        for p in calls[i].flat_outs
    }
    fences = (c for c in calls if is_fence(c) and fusers.owner(c) is not None)
    refused = {c.label: "it is a fence" for c in fences}
    units: list[Unit] = []
    token, by_owner = _remembered(call_token), _by_owner(views)
    there: set[int] = set()

    def alone(call: BoundSymbol) -> None:
        """Append ``call``, after the views that it reads: in a group it would have made its own."""
        waiting = [call]
        while waiting:
            read = (views[p.name][1] for p in waiting[-1].flat_args if p.name in views)
            missing = [view for view in read if id(view) not in there]
            if missing:
                waiting += missing
            elif id(last := waiting.pop()) not in there:
                there.add(id(last))
                units.append(last)

    for unit in grouped(calls, owners):
        if not isinstance(unit, Group):
            alone(unit)
            continue
        own = by_owner[unit.owner]
        found = fusers.parts(unit.owner.executor, unit.calls, token, own)
        refused |= {view.label: DIFFERS for view in differing_views(found, own, token)}
        for part in found:
            reason = fusers.refusal(unit.owner.executor, part)
            if reason is None:
                units.append(Group(unit.owner, tuple(part)))
            else:
                for call in part:
                    alone(call)
                refused |= {c.label: reason for c in part}
    read = {p.name for u in units if isinstance(u, Group) for c in u.calls for p in c.flat_args}
    unread = _unread_views(views, read)
    # The reason to refuse a group explains more than the fact that its views have no reader.
    refused = dict.fromkeys(unread, "no region reads the view") | refused
    # An executor that hosts others' calls runs none of them; theirs do.
    hosted = {call.label for call in calls if call.symbol in fusers.hosted}
    return Plan(tuple(units), views, {k: v for k, v in refused.items() if k not in hosted})


def _by_owner(
    views: Mapping[str, tuple[Owner, BoundSymbol]],
) -> Mapping[Owner, Mapping[str, BoundSymbol]]:
    found: dict[Owner, dict[str, BoundSymbol]] = defaultdict(dict)
    for name, (owner, view) in views.items():
        found[owner][name] = view
    return found


def _remembered(token: Callable[[BoundSymbol], str]) -> Callable[[BoundSymbol], str]:
    """``token``, computed once for each call."""
    known: dict[int, str] = {}

    def found(call: BoundSymbol) -> str:
        if id(call) not in known:
            known[id(call)] = token(call)
        return known[id(call)]

    return found


def _owners(calls: Sequence[BoundSymbol], fusers: Fusers) -> dict[int, Owner]:
    """The owner of each call that may stand in a group, by index.

    Calls on numbers alone count for the device of the first call on tensors.
    """
    found = ((i, fusers.owner(call)) for i, call in enumerate(calls) if not is_fence(call))
    owners = {i: owner for i, owner in found if owner is not None}
    first = next((owner.devices for owner in owners.values() if owner.devices), frozenset())
    return {
        i: owner if owner.devices else owner._replace(devices=first) for i, owner in owners.items()
    }


def _unread_views(views: Mapping[str, tuple[Owner, BoundSymbol]], read: set[str]) -> list[str]:
    """The labels of view calls that no region needs, not even for another view."""
    for name, (_, view) in reversed(list(views.items())):
        if name in read:
            read = read | {p.name for p in view.flat_args}
    calls = {view.label: view for _, view in views.values()}
    return [label for label, v in calls.items() if not any(p.name in read for p in v.flat_outs)]
