"""A thread that compiles beside the program gives way to calls that are being answered.

Python runs one thread at a time. A call in eager lets go of the interpreter in each operation, and
would wait for it again each time: it would take several times as long. Most of a compilation is
Dynamo's, Inductor's and FX's code, so the thread looks for calls wherever it calls a function.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["answering", "giving_way", "waiting"]

SHARE = 0.15
"""Seconds to compile for each second of waiting: calls in several threads may leave no gap."""

LONGEST = 0.5
"""Most seconds to wait at once, after a step that took long."""

STEP = 0.001
"""Seconds to compile at once; to wait takes time, too."""

GAP = 0.001
"""Seconds without a call after which there is time to compile."""


class _Own(threading.local):
    """Number of calls that a thread answers, one within the other."""

    calls = 0


class _Way:
    """The number of ``calls`` that are being answered, in all threads."""

    def __init__(self) -> None:
        self.calls = 0
        self.own = _Own()
        self.changed = threading.Condition()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """A block in which a call is answered, in eager or by a program."""
        self._add(1)
        self.own.calls += 1
        try:
            yield
        finally:
            self.own.calls -= 1
            self._add(-1)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Callable[[], None]]:
        """A block in which this thread waits for the one that compiles, which may go on.

        The block is given a function that ends the waiting before the block does.
        """
        with contextlib.ExitStack() as stack:
            own = self.own.calls
            self._add(-own)
            stack.callback(self._add, own)
            yield stack.close

    @contextlib.contextmanager
    def giving(self) -> Iterator[None]:
        """A block in which this thread waits for calls that are being answered.

        It compiles for a small share of the time while calls leave no gap. In a thread that a
        profiler looks at already it does not wait.
        """
        if sys.getprofile() is not None:
            yield
            return
        used = time.thread_time()

        def give(*event: Any) -> None:
            nonlocal used
            if self.calls and (now := time.thread_time()) - used >= STEP:
                self._wait(min((now - used) / SHARE, LONGEST))
                used = now

        sys.setprofile(give)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _add(self, number: int) -> None:
        with self.changed:
            self.calls += number
            if not self.calls:
                self.changed.notify_all()

    def _wait(self, longest: float) -> None:
        until = time.monotonic() + longest
        while (left := until - time.monotonic()) > 0:
            with self.changed:
                self.changed.wait_for(lambda: not self.calls, left)
            # Where one call follows another, there is no gap to compile in.
            time.sleep(GAP)
            if not self.calls:
                break


_way = _Way()
answering = _way.answering
giving_way = _way.giving
waiting = _way.waiting
