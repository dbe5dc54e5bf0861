"""The thread of the process that compiles behind calls, and its queue."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from tj_core.compile.collection import collecting_young

__all__ = ["Stopped", "Worker", "stop_at_exit", "worker"]

_Work = tuple["weakref.ref[Any]", Callable[[Any], None]]


_TURN = 2e-5
"""Seconds for which the thread may run Python code while another waits to run some.

Calls wait after each operation that runs without the GIL: in a model of 20 operations, 20 times.
Python's own 5 ms would make the call wait for 0.1 s.
"""


# No `Exception`, which handlers of failed compilations would take for one.
class Stopped(BaseException):
    """The process ends, and the compilation in the thread is given up."""


class Worker:
    """The queue of the thread that compiles.

    The thread ends when its queue is empty, so that it keeps no process alive, and no thread is
    killed while it compiles.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[_Work] = deque()
        self.thread: threading.Thread | None = None
        self._interval: float | None = None

    def put(self, owner: Any, work: Callable[[Any], None]) -> None:
        """Let the thread call ``work(owner)``, if ``owner`` is there still."""
        with self.changed:
            self.waiting.append((weakref.ref(owner), work))
            if self.thread is None:
                self._take_short_turns()
                self.thread = threading.Thread(target=self._work, name="tj-compile")
                self.thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do; False if ``timeout`` seconds were too few."""
        with self.changed:
            return self.changed.wait_for(lambda: self.thread is None, timeout)

    def _work(self) -> None:
        while (found := self._next()) is not None:
            reference, work = found
            live = reference()
            if live is not None:
                # `_next` ends the thread.
                with contextlib.suppress(Stopped), collecting_young():
                    work(live)
            del live

    def _take_short_turns(self) -> None:
        interval = sys.getswitchinterval()
        if interval > _TURN:
            self._interval = interval
            sys.setswitchinterval(_TURN)

    def take_long_turns(self) -> None:
        """Set the interval between threads back, unless the program has set another meanwhile."""
        if self._interval is not None and abs(sys.getswitchinterval() - _TURN) < _TURN / 10:
            sys.setswitchinterval(self._interval)
        self._interval = None

    def _next(self) -> _Work | None:
        with self.changed:
            # At exit, Python waits for the thread: what has not begun is not needed any more.
            if self.waiting and threading.main_thread().is_alive():
                return self.waiting.popleft()
            self.waiting.clear()
            self.thread = None
            self.take_long_turns()
            self.changed.notify_all()
            return None


def stop_at_exit() -> None:
    """Raise if the process is about to end; called before a long step.

    :raises Stopped: if its main thread has ended.
    """
    if not threading.main_thread().is_alive():
        raise Stopped


# Dynamo captures one program at a time in a process: one thread for all sessions.
_worker = Worker()


def worker() -> Worker:
    """The worker of this process."""
    return _worker


def _forget() -> None:
    """Begin anew in a child of the process, which has no thread that compiles."""
    global _worker
    _worker.take_long_turns()
    _worker = Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
