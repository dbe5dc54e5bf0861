"""A thread that compiles beside the program gives way to calls that are being answered.

Python runs one thread at a time. A call in eager lets go of the interpreter in each operation, and
would wait for it again each time, for up to 5 ms: it would take several times as long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from tj_torch.runtime.beside import is_beside

__all__ = ["answering", "give_way"]

SHARE = 0.15
"""Seconds to compile for each second of waiting: calls in several threads may leave no gap."""

LONGEST = 0.5
"""Most seconds to wait at once, after a step that took long."""


STEP = 0.001
"""Seconds to compile at once; to wait takes time, too."""

GAP = 0.001
"""Seconds without a call after which there is time to compile."""


class _Used(threading.local):
    """Processor time of a thread when it waited last."""

    seconds = 0.0


class _Way:
    """The number of ``calls`` that are being answered in eager."""

    def __init__(self) -> None:
        self.calls = 0
        self.used = _Used()
        self.changed = threading.Condition()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """A block in which a call is answered in eager."""
        with self.changed:
            self.calls += 1
        try:
            yield
        finally:
            with self.changed:
                self.calls -= 1
                if not self.calls:
                    self.changed.notify_all()

    def give(self) -> None:
        """Wait for the calls that are being answered; nothing unless this thread compiles beside.

        So compilation takes a small share of the time while calls leave no gap.
        """
        if not self.calls or not is_beside():
            return
        used = time.thread_time()
        if used - self.used.seconds < STEP:
            return
        until = time.monotonic() + min((used - self.used.seconds) / SHARE, LONGEST)
        while (left := until - time.monotonic()) > 0:
            with self.changed:
                self.changed.wait_for(lambda: not self.calls, left)
            # Where one call follows another, there is no gap to compile in.
            time.sleep(GAP)
            if not self.calls:
                break
        self.used.seconds = used


_way = _Way()
answering = _way.answering
give_way = _way.give
