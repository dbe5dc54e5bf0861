"""The compiled entries of one jitted callable: kept, evicted, invalidated; and its fallbacks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from tj_core.errors import TjWarning
from tj_core.jitted import Entry, Fallback, Jitted
from tj_core.source import Source

from tj_torch.frontend.sources import users_stacklevel

__all__ = ["Entries"]

R = TypeVar("R")


class Entries(Generic[R]):
    """Entries and their rows: what the dispatching function looks through, oldest first.

    ``publish`` is told the rows whenever they change.
    """

    def __init__(self, jitted: Jitted, publish: Callable[[tuple[R, ...]], None]) -> None:
        self.jitted = jitted
        self.publish = publish
        self.rows: tuple[R, ...] = ()
        self._by_entry: dict[Entry, R] = {}

    def __len__(self) -> int:
        return len(self._by_entry)

    def add(self, entry: Entry, row: R) -> None:
        """Keep ``entry``; the oldest ones go, loudly, where there are more than the config says."""
        self._by_entry[entry] = row
        self.jitted.add(entry)
        limit = self.jitted.session.config.core.max_entries
        while len(self.jitted.entries) > limit:
            self._forget(self.jitted.entries[0])
            self.jitted.stats.evicted += 1
            self._warn(
                f"tj: {self.jitted.name} has more than {limit} compiled entries; the oldest is "
                "dropped. Calls that keep changing recompile each time: see tj.guards(f), or "
                "raise [tool.tj] max_entries"
            )
        self._refresh()

    def dead(self, entry: Entry) -> None:
        """Something the entry depends on is gone: so must the entry be."""
        if entry in self._by_entry:
            self._forget(entry)
            self.jitted.stats.invalidated += 1
            self._refresh()

    def clear(self) -> None:
        """The program is another one: no entry is valid."""
        for entry in list(self._by_entry):
            self.dead(entry)

    def fall_back(self, reason: str, source: Source | None) -> None:
        """Record a fallback, and warn of it once."""
        fallback = Fallback(reason, source)
        stats = self.jitted.stats
        if fallback in stats.fallbacks:
            return
        stats.fallbacks = (*stats.fallbacks, fallback)
        where = f"\n  at {source}" if source else ""
        self._warn(f"tj: {self.jitted.name}: {reason}{where}")

    def on_dead(self, entry: Entry) -> Callable[[], None]:
        """A call of `dead` that keeps neither this nor ``entry`` alive; nothing once one is."""
        owners, entries = weakref.ref(self), weakref.ref(entry)

        def call() -> None:
            live, found = owners(), entries()
            if live is not None and found is not None:
                live.dead(found)

        return call

    def _warn(self, text: str) -> None:
        warnings.warn(text, TjWarning, stacklevel=users_stacklevel())

    def _forget(self, entry: Entry) -> None:
        self._by_entry.pop(entry, None)
        self.jitted.drop(entry)

    def _refresh(self) -> None:
        self.rows = tuple(self._by_entry.values())
        self.publish(self.rows)
