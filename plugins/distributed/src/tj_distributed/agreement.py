"""Agreement of a group's ranks on the collectives of the programs that they run.

Ranks that run different collectives wait for each other for ever, or add up what does not belong
together. So each run of a program with collectives says in the group's store which sequence it is
about to run, under the number of the run: a store is no collective, and a rank that has nothing to
compile does not hang on one that has.

Keys, below the prefix ``tj``: ``run/<number>/<rank>`` is the hash of a sequence,
``sequence/<hash>`` its text, ``reason/<hash>/<rank>`` why the rank has compiled the program again,
``failed`` what one rank has found.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tj_core.extend import TjError

from tj_distributed.sequence import digest, first_difference, from_text, to_text

if TYPE_CHECKING:
    from tj_distributed.options import Options
    from tj_distributed.sequence import Collective

__all__ = ["Agreement", "MembersOf", "RanksDisagreeError"]

_KEPT = 64
"""Runs whose words stay in the store; a rank that is further behind could not be compared."""

_AFTERWARDS = 0.5
"""Seconds in which another rank's finding may arrive after the connection is lost."""

_POLL = 0.002
_IDLE = 0.05
"""Seconds between two looks into the store: for a rank that waits, or after a word, and later."""

log = logging.getLogger("tj.distributed")


class RanksDisagreeError(TjError):
    """Ranks of one group are about to run, or have run, different collectives."""


class MembersOf(Protocol):
    """The ranks of a group, and a store that all of them see; see `tj_distributed.adapter`."""

    rank: int
    size: int
    timeout: float

    def has(self, key: str) -> bool:
        """Test if some rank has set ``key``, without waiting."""
        ...

    def get(self, key: str) -> str:
        """Text of a present ``key``."""
        ...

    def set(self, key: str, text: str) -> None:
        """Let all ranks see ``text``."""
        ...

    def drop(self, key: str) -> None:
        """Remove ``key``."""
        ...

    def waiting(self, text: str) -> None:
        """Let ranks that run in eager see what this one waits for; nothing any more if empty."""
        ...

    def in_eager(self) -> dict[int, str]:
        """The program that runs in eager on a rank, the last one, with the reason, by rank."""
        ...


class Agreement:
    """The word of this rank and of the others in one group.

    ``runs`` is the number of programs begun. ``failure`` is set as soon as a difference is
    known; whoever waits for a collective raises it.
    """

    def __init__(self, name: str, members: MembersOf, options: Options) -> None:
        self.name = name
        self.members = members
        self.options = options
        self.failure: str | None = None
        self.runs = 0
        self._said: dict[str, str] = {}
        self._unsettled: set[int] = set()
        # Of words that the thread is to say: runs that do not wait must not pay for the store.
        self._later: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin(self, found: tuple[Collective, ...], reason: str = "") -> None:
        """Say that a program with these collectives starts; see that the others' start the same.

        The first run of a sequence waits for the others, later ones if the option says so.
        ``reason``: the guard of an earlier program that failed, for a program compiled again.

        :raises RanksDisagreeError: if a rank starts another sequence.
        :raises TjError: if a rank does not say anything until the group's timeout.
        """
        key = digest(found)  # kept by sequence: this runs in each call
        with self._lock:
            self.runs += 1
            run, before = self.runs, self._said.get(key)
            self._said[key] = reason
            self._unsettled.add(run)
        new = before is None
        self.check()
        if reason != (before or ""):
            self.members.set(f"reason/{key}/{self.members.rank}", reason)
        if new:
            self.members.set(f"sequence/{key}", to_text(found))
        if new or self.options.agree == "run":
            self._say(run, key)
            self._wait(run, key)
            self.check()
            self._unsettled.discard(run)
        else:
            self._later.put((run, key))
            self._start()

    @property
    def settled(self) -> bool:
        """True if all ranks are known to have begun each run of this one, with its sequence."""
        return not self._unsettled and self.failure is None

    def check(self) -> None:
        """Raise what a rank has found.

        :raises RanksDisagreeError: if there is something.
        """
        if self.failure is not None:
            raise RanksDisagreeError(
                self.failure,
                hint="All ranks of a group have to call it in one order: see what the programs "
                "depend on (tj.guards), and which values differ between ranks.",
            )

    def explain(self, error: BaseException) -> None:
        """Note on ``error`` what each rank has begun last; raise what one has found.

        A rank that finds a difference raises, and may close the connection before others know why.
        """
        deadline = time.monotonic() + _AFTERWARDS
        try:
            while self.failure is None and not self.members.has("failed"):
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL)
            self._compared(self.runs, "", ())
            notes = [self._last(rank) for rank in range(self.members.size)]
            notes += _of_eager(self.members.in_eager())
        except Exception as gone:  # the rank that held the store has ended
            notes = [f"the store of the group does not answer: {gone}"]
        self.check()
        if hasattr(error, "add_note"):  # Python 3.11
            text = "\n".join((f"group {self.name}, what each rank has begun last:", *notes))
            error.add_note(text)

    def _last(self, rank: int) -> str:
        """Line on the last run that ``rank`` has begun, of those that the store keeps."""
        # The other rank may be one run ahead.
        for run in range(self.runs + 1, max(0, self.runs - _KEPT), -1):
            if self.members.has(f"run/{run}/{rank}"):
                key = self.members.get(f"run/{run}/{rank}")
                names = ", ".join(str(c) for c in from_text(self.members.get(f"sequence/{key}")))
                return f"  rank {rank}: run {run}: {names}"
        return f"  rank {rank}: nothing that is known"

    def close(self) -> None:
        """End the thread."""
        self._later.put(None)

    # ------------------------------------------------------------------ the store

    def _say(self, run: int, key: str) -> None:
        self.members.set(f"run/{run}/{self.members.rank}", key)
        if run > _KEPT:
            self.members.drop(f"run/{run - _KEPT}/{self.members.rank}")

    def _others(self) -> list[int]:
        return [rank for rank in range(self.members.size) if rank != self.members.rank]

    def _wait(self, run: int, key: str) -> None:
        """Wait for the word of all others on a run, and compare."""
        waiting, began, said = self._others(), time.monotonic(), False
        while True:
            waiting = self._compared(run, key, waiting)
            if not waiting or self.failure is not None:
                if said:
                    self.members.waiting("")
                return
            waited = time.monotonic() - began
            # In time for a rank in eager, whose collective ends with the group's timeout, too.
            if not said and waited > min(self.options.patience, self.members.timeout / 2):
                said = True
                text = self._waits(run, key, waiting)
                self.members.waiting(text)
                log.warning("%s", text)
            if waited > self.members.timeout:
                raise TjError(
                    f"{self._waits(run, key, waiting)}\nThey have said nothing for {waited:.0f} s",
                    hint="They may have ended, run in eager, or run a program without collectives.",
                )
            time.sleep(_POLL)

    def _waits(self, run: int, key: str, ranks: Sequence[int]) -> str:
        """Describe what this rank is about to run, and what is known of ``ranks``."""
        eager = {rank: text for rank, text in self.members.in_eager().items() if rank in ranks}
        mine = ", ".join(map(str, from_text(self.members.get(f"sequence/{key}"))))
        lines = [
            f"group {self.name}: rank {self.members.rank} waits for ranks {[*ranks]}, which may be "
            f"compiling (run {run})",
            f"  rank {self.members.rank}, compiled: {mine}",
            *_of_eager(eager),
        ]
        return "\n".join(lines)

    def _compared(self, run: int, key: str, ranks: Iterable[int]) -> list[int]:
        """Compare with the ranks that have given their word; return the others."""
        if self.failure is None and self.members.has("failed"):
            self.failure = self.members.get("failed")
        left = []
        for rank in ranks:
            if not self.members.has(f"run/{run}/{rank}"):
                left.append(rank)
                continue
            theirs = self.members.get(f"run/{run}/{rank}")
            if theirs != key and self.failure is None:
                self._differ(run, key, rank, theirs)
        return left

    def _differ(self, run: int, key: str, rank: int, theirs: str) -> None:
        """Tell all ranks, if two hashes are of sequences that do not agree."""
        ours, other = (from_text(self.members.get(f"sequence/{k}")) for k in (key, theirs))
        place = first_difference(ours, other)
        if place is None:
            return
        mine = (self.members.rank, key, ours)
        # The lower rank first: both may find the difference, and then say the same.
        (low, one, first), (high, two, second) = sorted([mine, (rank, theirs, other)])
        self.failure = (
            f"group {self.name}: ranks {low} and {high} run different collectives (run {run}, "
            f"collective {place + 1})\n{_listed(low, self._reason(one, low), first, place)}\n"
            f"{_listed(high, self._reason(two, high), second, place)}"
        )
        self.members.set("failed", self.failure)

    def _reason(self, key: str, rank: int) -> str:
        """The reason that ``rank`` has given for its program with the sequence ``key``."""
        name = f"reason/{key}/{rank}"
        return self.members.get(name) if self.members.has(name) else ""

    # ------------------------------------------------------------------ in the background

    def _start(self) -> None:
        if self._thread is None:
            target: Callable[[], None] = self._watch
            # A daemon: Python waits for other threads at its end, and this one may be waiting for
            # words.
            self._thread = threading.Thread(target=target, name=f"tj-{self.name}", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        """Send this rank's words, and compare them with the others' as those come."""
        open_runs: dict[int, tuple[str, list[int]]] = {}
        pause = _POLL
        while self.failure is None:
            try:
                word = self._later.get(timeout=pause if open_runs else None)
            except queue.Empty:
                word, pause = None, min(2 * pause, _IDLE)
            else:
                if word is None:
                    return
                open_runs[word[0]] = word[1], self._others()
                # A rank removes its words on older runs, so that these would stay open for ever.
                open_runs.pop(word[0] - _KEPT, None)
                self._unsettled.discard(word[0] - _KEPT)
                pause = _POLL  # the others are about to say theirs, and waits are quicker then
            try:
                if word is not None:
                    self._say(*word)
                # Words first: other ranks may be waiting for them.
                if self._later.empty():
                    self._compare_open(open_runs)
            except Exception as error:  # the store is gone, as at the end of a process
                log.debug("group %s: %s", self.name, error)
                return

    def _compare_open(self, open_runs: dict[int, tuple[str, list[int]]]) -> None:
        """Compare runs with the ranks that have not been compared; forget those that are done."""
        for run, (key, ranks) in list(open_runs.items()):
            left = self._compared(run, key, ranks)
            open_runs[run] = key, left
            if not left:
                del open_runs[run]
                self._unsettled.discard(run)


def _of_eager(programs: Mapping[int, str]) -> list[str]:
    """Lines on the ``programs`` that run in eager, by rank."""
    return [f"  rank {rank} has fallen back to eager: {text}" for rank, text in programs.items()]


def _listed(rank: int, reason: str, found: tuple[Collective, ...], place: int) -> str:
    lines = [f"  rank {rank}" + (f", compiled again because {reason}:" if reason else ":")]
    for i, collective in enumerate(found):
        lines.append(f"  {'->' if i == place else '  '} {i + 1}. {collective}")
    if place >= len(found):
        lines.append("  -> (no more)")
    return "\n".join(lines)
