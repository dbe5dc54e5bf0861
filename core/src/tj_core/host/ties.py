"""Ties: executors for the same operations, of which names alone decide who is asked first.

Their plugins have equal priority, and the project names neither.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor
    from tj_core.host.plugins import PluginManager

__all__ = ["HOW_TO_ORDER", "Tie", "Ties", "rivals", "ties"]

HOW_TO_ORDER = "`tj plugins order` shows and sets the order"

_SHOWN = 3
"""The number of operations that a tie names."""


@dataclass(frozen=True, slots=True)
class Tie:
    """Two plugins, the first of which is asked first by its name alone, with their executors.

    ``operations`` are the keys of claims on both sides. They are empty if both fuse: which
    operations these take is said call by call.
    """

    first: str
    second: str
    executors: tuple[str, str]
    operations: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The tie in words."""
        more = len(self.operations) - _SHOWN
        shown = ", ".join(self.operations[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        taken = f"both may take {shown}" if self.operations else "both fuse operations"
        return f"{self.first} is asked before {self.second} by their names alone, and {taken}"


def ties(manager: PluginManager) -> tuple[Tie, ...]:
    """The ties between the executors of all loaded plugins, in their order."""
    if manager.orders_executors:
        return ()
    found = []
    for (first, one), (second, two) in combinations(manager.executors(), 2):
        if one.fallback or two.fallback or not manager.are_tied(first, second):
            continue
        operations = _both(one, two)
        if operations or (one.fusion and two.fusion):
            found.append(Tie(first, second, (one.name, two.name), operations))
    return tuple(found)


def rivals(manager: PluginManager) -> tuple[tuple[str, ...], ...]:
    """The groups of plugins that tie if they take the same operations; asks no plugin for records.

    Plugins whose executors are asked last anyway (``TJ_FALLBACK``) are left out.
    """
    if manager.orders_executors:
        return ()
    groups: dict[int, list[str]] = {}
    for state in manager.states:
        asked = state.state == "loaded" and "tj_executors" in state.hooks and not state.requested
        if asked and not manager.is_fallback(state.name):
            groups.setdefault(manager.rank(state.name), []).append(state.name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def _both(one: Executor, two: Executor) -> tuple[str, ...]:
    """The keys that both may take: of claims on both sides, or on one, if the other fuses."""
    left, right = ({rule.key for rule in e.claims} for e in (one, two))
    found = {key for key in left if two.fusion or _taken(key, right)}
    found |= {key for key in right if one.fusion or _taken(key, left)}
    return tuple(sorted(found))


def _taken(key: str, keys: set[str]) -> bool:
    return bool(keys & {key, key.partition(".")[0] + ".*", "*"})


@dataclass
class Ties:
    """The ties of a session; `look_at` logs them once, when the first program is compiled."""

    manager: PluginManager
    logged: bool = False
    lock: Any = field(default_factory=threading.Lock)

    def look_at(self, executors: Sequence[Executor], *, ordered: bool) -> None:
        """Log one line on the ties of ``executors``, unless the call has ``ordered`` them."""
        if self.logged or ordered:
            return
        # Two threads may compile their first programs at once.
        with self.lock:
            logged, self.logged = self.logged, True
        names = {executor.name for executor in executors}
        found = () if logged else [t for t in ties(self.manager) if names >= {*t.executors}]
        if found:
            more = len(found) - 1
            pairs = "is 1 other pair" if more == 1 else f"are {more} other pairs"
            others = f", and so {pairs} of plugins" if more else ""
            logging.getLogger("tj").warning("tj: %s%s. %s", found[0], others, HOW_TO_ORDER)
