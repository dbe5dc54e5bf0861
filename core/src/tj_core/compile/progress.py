"""The progress bar of a compilation that takes long, on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["Progress"]


class Progress:
    """A bar on stderr for each compilation that takes more than ``after`` seconds.

    Nothing is shown unless ``wanted``, and stderr is a terminal. A compilation inside of another,
    or in another thread meanwhile, has no bar of its own. ``console`` is the rich console to write
    to, instead of stderr.
    """

    def __init__(self, wanted: bool, after: float = 2.0, console: Any = None) -> None:
        self.wanted = wanted
        self.after = after
        self.console = console
        self._lock = threading.Lock()
        self._running = False
        self._bar: Any = None
        self._name = ""
        self._total = 0
        self._done = -1
        self._step = ""

    @contextlib.contextmanager
    def showing(self, name: str, total: int) -> Iterator[None]:
        """Show how far the compilation of ``name``, of about ``total`` passes, is meanwhile."""
        if not self._begin(name, total):
            yield
            return
        timer = threading.Timer(self.after, self._show)
        timer.daemon = True  # a process that ends does not wait for the bar
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._end()

    def step(self, name: str) -> None:
        """Note that the pass ``name`` begins."""
        if not self._running or name == self._step:
            return
        with self._lock:
            self._step, self._done = name, self._done + 1
            if self._bar is not None:
                self._bar.update(0, **self._facts())

    def _begin(self, name: str, total: int) -> bool:
        if not self.wanted or not (self.console or sys.stderr.isatty()):
            return False
        with self._lock:
            if self._running:
                return False
            self._running = True
            self._name, self._total, self._done, self._step = name, total, -1, "capture"
        return True

    def _facts(self) -> dict[str, Any]:
        # More passes than expected run where a transform declines the program: no end is known.
        total = max(self._total, self._done + 1)
        return {"completed": max(self._done, 0), "total": total, "description": self._step}

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        title = Text(f"tj: compiling {self._name}").markup  # a bracket in a name is no markup
        columns = (
            SpinnerColumn(),
            TextColumn(title),
            BarColumn(30),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
        )
        with self._lock:
            if not self._running:
                return
            console = self.console or Console(stderr=True)
            self._bar = Bar(*columns, console=console, transient=True)
            self._bar.add_task(**self._facts())
            (task,) = self._bar.tasks
            task.start_time -= self.after  # the seconds since the compilation began
            self._bar.start()

    def _end(self) -> None:
        with self._lock:
            self._running = False
            bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()
