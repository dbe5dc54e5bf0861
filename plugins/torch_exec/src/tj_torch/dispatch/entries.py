"""The compiled entries of one jitted callable: kept, evicted, invalidated; and its fallbacks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from tj_core.extend import CaptureError, Entry, Fallback, Jitted, PassError, Source, TjWarning

from tj_torch.capture.sources import users_stacklevel

__all__ = ["Entries", "fall_back", "fall_back_from"]

R = TypeVar("R")


def fall_back(jitted: Jitted, reason: str, source: Source | None, *, silent: bool = False) -> None:
    """Record a fallback of ``jitted``, and warn of it once, unless the user asked for it."""
    fallback = Fallback(reason, source)
    if fallback in jitted.stats.fallbacks:
        return
    jitted.stats.fallbacks = (*jitted.stats.fallbacks, fallback)
    where = f"\n  at {source}" if source else ""
    if not silent:
        _warn(f"tj: {jitted.name}: {reason}{where}")


def fall_back_from(jitted: Jitted, error: CaptureError | PassError) -> None:
    """Record that a program runs without tj because of ``error``, and warn of it once."""
    captured = isinstance(error, PassError)
    reason = error.message if captured else f"not captured: {error.message}"
    fall_back(jitted, f"{reason}; {error.hint}" if captured else reason, error.source)


def _warn(text: str) -> None:
    warnings.warn(text, TjWarning, stacklevel=users_stacklevel())


class Entries(Generic[R]):
    """Entries and their rows: what the dispatching function looks through, oldest first.

    ``publish`` gets the rows whenever they change.
    """

    def __init__(self, jitted: Jitted, publish: Callable[[tuple[R, ...]], None]) -> None:
        self.jitted = jitted
        self.publish = publish
        self.rows: tuple[R, ...] = ()
        self._by_entry: dict[Entry, R] = {}

    def __len__(self) -> int:
        return len(self._by_entry)

    def add(self, entry: Entry, row: R) -> None:
        """Keep ``entry``; the oldest ones go, loudly, where there are more than the config says.

        If that is interrupted, the rows are those that were.
        """
        try:
            self._by_entry[entry] = row
            self.jitted.add(entry)
            self._refresh()
        except BaseException:
            self._forget(entry)
            self._refresh()
            raise
        self.jitted.stats.misses += 1
        limit = self.jitted.session.config.core.max_entries
        while len(self.jitted.entries) > limit:
            self.dead(self.jitted.entries[0], evicted=True)
            _warn(
                f"tj: {self.jitted.name} has more than {limit} compiled entries; the oldest is "
                "dropped. Calls that keep changing recompile each time: see tj.guards(f), or "
                "raise [tool.tj] max_entries"
            )

    def dead(self, entry: Entry, *, evicted: bool = False) -> None:
        """Something the entry depends on is gone, or its place is wanted: so must the entry be."""
        if entry not in self._by_entry:
            return
        self._forget(entry)
        if evicted:
            self.jitted.stats.evicted += 1
        else:
            self.jitted.stats.invalidated += 1
        self._refresh()

    def clear(self) -> None:
        """The program is another one: no entry is valid."""
        for entry in list(self._by_entry):
            self.dead(entry)

    def fall_back(self, reason: str, source: Source | None, *, silent: bool = False) -> None:
        """Record a fallback, and warn of it once, unless the user asked for it."""
        fall_back(self.jitted, reason, source, silent=silent)

    def fall_back_from(self, error: CaptureError | PassError) -> None:
        """Record that the program runs without tj because of ``error``, and warn of it once."""
        fall_back_from(self.jitted, error)

    def on_dead(self, entry: Entry) -> Callable[[], None]:
        """A call of `dead` that keeps neither this nor ``entry`` alive; nothing once one is."""
        owners, entries = weakref.ref(self), weakref.ref(entry)

        def call() -> None:
            live, found = owners(), entries()
            if live is not None and found is not None:
                live.dead(found)

        return call

    def _forget(self, entry: Entry) -> None:
        self._by_entry.pop(entry, None)
        self.jitted.drop(entry)

    def _refresh(self) -> None:
        self.rows = tuple(self._by_entry.values())
        self.publish(self.rows)
