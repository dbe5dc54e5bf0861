"""Compiled entries of one jitted callable: add, evict, invalidate."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tj_torch.capture.sources import stack_source
from tj_torch.dispatch.fallbacks import fall_back, fall_back_from, first_lines, stand_aside, warn
from tj_torch.ops.fakes.modes import forget_results

if TYPE_CHECKING:
    from tj_core.extend import CaptureError, Entry, Jitted, PassError, Source

__all__ = ["Entries"]

R = TypeVar("R")

_EVICTED_BETWEEN = 64
"""Entries that are evicted before PyTorch's memory of calls on fake tensors is cleared: without
end, each new shape would add to it.
"""


def _itself(row: R) -> R:
    return row


class Entries(Generic[R]):
    """Entries of a jitted callable and their rows, which the dispatching function tries in order.

    The oldest come first. ``publish`` is called with all rows whenever they change. ``noting``
    makes a row that also calls a function when it answers a call. ``called`` counts the entries
    that a call has waited for.

    It only matters which entries are in use when one has to make room. So calls are noted only from
    ``max_entries`` entries on, and of each entry only the first call since the last change; further
    calls cost no more than usual.
    """

    def __init__(
        self,
        jitted: Jitted,
        publish: Callable[[tuple[R, ...]], None],
        noting: Callable[[R, Callable[[], None]], R],
    ) -> None:
        self.jitted = jitted
        self.publish = publish
        self.noting = noting
        self.rows: tuple[R, ...] = ()
        self._around: Callable[[R], R] = _itself
        self.called = 0
        self._by_entry: dict[Entry, R] = {}
        self._used: weakref.WeakKeyDictionary[Entry, int] = weakref.WeakKeyDictionary()
        self._unnoted: frozenset[Entry] = frozenset()
        self._clock = itertools.count(1)

    def __len__(self) -> int:
        return len(self._by_entry)

    def add(self, entry: Entry, row: R, *, called: bool = True) -> None:
        """Add ``entry``; beyond ``max_entries`` of the config, drop one, with a warning.

        The entry unused for longest makes room. ``called``: a call waits for ``entry``, and
        is counted. If this is interrupted, the rows are as before.
        """
        try:
            self._by_entry[entry] = row
            self._used[entry] = next(self._clock)
            self.jitted.add(entry)
            self._refresh()
        # KeyboardInterrupt, too: an entry in one of the tables only would never be dropped.
        except BaseException:
            self._forget(entry)
            self._refresh()
            raise
        self.called += called
        self.jitted.stats.misses += called
        limit = self.jitted.session.config.core.max_entries
        dropped = 0
        # Other entries of the program may not be this object's: see `DynamoPrograms._within_hooks`.
        while len(self.jitted.entries) > limit and len(self._by_entry) > 1:
            self.dead(min(self._by_entry, key=self._used.__getitem__), evicted=True)
            dropped += 1
        if len(self.jitted.entries) >= limit:
            self._unnoted = frozenset(self._by_entry)
            self._refresh()
        if dropped:
            warn(
                f"tj: {self.jitted.name} has more than {limit} compiled entries; the one that has "
                "gone unused for longest is dropped. Calls that keep changing recompile each time: "
                "see tj.guards(f), or raise [tool.tj] max_entries"
            )

    def dead(self, entry: Entry, *, evicted: bool = False) -> None:
        """Drop ``entry``: an object that it depends on is gone, or it is evicted."""
        # Dead already: of several objects that it depends on, each calls this once it is freed.
        if entry not in self._by_entry:
            return
        self._forget(entry)
        if evicted:
            self.jitted.stats.evicted += 1
            if self.jitted.stats.evicted % _EVICTED_BETWEEN == 0:
                forget_results()
        else:
            self.jitted.stats.invalidated += 1
        self._refresh()

    @contextlib.contextmanager
    def around(self, change: Callable[[R], R]) -> Iterator[None]:
        """Publish each row as ``change`` makes it, inside of the block."""
        self._around = change
        self._refresh()
        try:
            yield
        finally:
            self._around = _itself
            self._refresh()

    def clear(self) -> None:
        """Drop all entries, as the program has changed."""
        for entry in list(self._by_entry):
            self.dead(entry)

    def fall_back(self, reason: str, source: Source | None, *, silent: bool = False) -> None:
        """Record a fallback; warn of it once, unless ``silent``."""
        fall_back(self.jitted, reason, source, silent=silent)

    def stand_aside(self, reason: str) -> None:
        """Record that a call does not run a program; see the function `stand_aside`."""
        stand_aside(self.jitted, reason)

    def fall_back_from(self, error: CaptureError | PassError) -> None:
        """Record a fallback because of ``error``, and warn of it once."""
        fall_back_from(self.jitted, error)

    def skipped(self, reason: str, stack: Any) -> None:
        """Record that Dynamo cannot capture the code at ``stack``, and warn of it once."""
        self.fall_back(f"not captured: {first_lines(reason)}", stack_source(stack))

    def on_dead(self, entry: Entry) -> Callable[[], None]:
        """Callback that calls `dead` for ``entry``, with weak references to both objects."""
        owners, entries = weakref.ref(self), weakref.ref(entry)

        def call() -> None:
            live, found = owners(), entries()
            # The finalizer may run after both are gone.
            if live is not None and found is not None:
                live.dead(found)

        return call

    def _forget(self, entry: Entry) -> None:
        self._by_entry.pop(entry, None)
        self.jitted.drop(entry)

    def _refresh(self) -> None:
        self.rows = tuple(
            self._noting(entry, row) if entry in self._unnoted else row
            for entry, row in list(self._by_entry.items())
        )
        self.publish(tuple(map(self._around, self.rows)))

    def _noting(self, entry: Entry, row: R) -> R:
        """``row`` that notes its first call."""
        owners, entries = weakref.ref(self), weakref.ref(entry)

        def used() -> None:
            live, found = owners(), entries()
            if live is not None and found is not None:
                live._note(found)

        return self.noting(row, used)

    def _note(self, entry: Entry) -> None:
        """Note that ``entry`` has answered a call."""
        self._used[entry] = next(self._clock)
        self._unnoted -= {entry}
        self._refresh()
