"""Runs tests in processes with limits; one that dies is followed by another for what is left."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from tj_suites import COMMAND
from tj_suites.upstream.kinds import Kind, Mode, environment
from tj_suites.upstream.outcome import Outcome, Status, last_lines
from tj_suites.upstream.worker import Order

__all__ = ["LOAD", "Limits", "Run", "run"]

LOAD = "(load)"
"""Stands for a test's name where a file does not even load."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a process in time and memory."""

    seconds: float = 180.0
    """Of time, for one test; for loading the file as well."""
    memory: int = 12 << 30
    """Of address space, in bytes."""
    each: bool = False
    """Give every test a process to itself."""
    interpret: bool = False
    """Run regions operator by operator, and compile nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tests of a file, and the mode to run them in; ``tests`` None means all."""

    file: Path
    kind: Kind
    mode: Mode
    tests: tuple[str, ...] | None = None
    part: tuple[int, int] = (0, 1)
    """The part, and the number of parts, where ``tests`` is None."""


@dataclass
class _Progress:
    """Progress of a run."""

    watch: Callable[[Outcome], None]
    names: list[str] | None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    current: str | None = None

    def left(self) -> list[str] | None:
        """The tests that have not run; None where they are not known yet."""
        if self.names is None:
            return None
        return [name for name in self.names if name not in self.outcomes]

    def take(self, line: dict[str, Any]) -> None:
        """Note one line of a process."""
        if "tests" in line and self.names is None:
            self.names = line["tests"]
        self.current = line.get("begin")
        if "end" in line:
            self.end(Outcome.read(line["end"]))

    def end(self, outcome: Outcome) -> None:
        """A test has ended."""
        self.outcomes[outcome.test] = outcome
        self.current = None
        self.watch(outcome)

    def died(self, status: Status, how: str, tail: str) -> None:
        """The process ended in the middle of a test, or before it had loaded the file."""
        if self.current is not None:
            self.end(Outcome(self.current, status, f"{status.value}: {how}", tail))
            return
        if self.names is None:
            self.names = [LOAD]
        why = f"the file does not load, {how}: {tail[tail.rfind(chr(10)) + 1 :]}"
        for name in self.left() or ():
            self.end(Outcome(name, Status.GONE, why, tail))


def run(
    job: Run, limits: Limits, watch: Callable[[Outcome], None] = lambda outcome: None
) -> dict[str, Outcome]:
    """The outcome of every test, in the order in which they ran."""
    progress = _Progress(watch, None if job.tests is None else list(job.tests))
    while progress.left() is None or progress.left():
        _one_process(job, progress, limits)
    return progress.outcomes


def _one_process(job: Run, progress: _Progress, limits: Limits) -> None:
    """Run tests that are left, until the process is done or dies."""
    left, before = progress.left(), len(progress.outcomes)
    tests = left[:1] if left and limits.each else left
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "log"), "wb+") as log:
        process = _start(job, tests, limits, folder, log)
        status = _follow(process, progress, limits)
        code = _stop(process)
        if progress.current is not None or len(progress.outcomes) == before:
            progress.died(status, _how(code), _tail(log))


def _follow(process: subprocess.Popen[bytes], progress: _Progress, limits: Limits) -> Status:
    """Take what the process tells until it is done or dies; how it died, if it did."""
    assert process.stdout is not None
    with process.stdout as pipe:
        try:
            for line in _lines(process, pipe, limits.seconds):
                if "done" in line:
                    break
                progress.take(line)
        except TimeoutError:
            return Status.TIMED_OUT
    return Status.CRASHED


def _start(
    job: Run, tests: list[str] | None, limits: Limits, folder: str, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    part, parts = job.part
    work = (str(job.file), job.kind.value, job.mode.value, tests)
    order = Order(*work, limits.memory, parts, part, limits.interpret)
    process = subprocess.Popen(
        [sys.executable, COMMAND, "upstream.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd=folder,
        env={"TORCHINDUCTOR_CACHE_DIR": folder} | os.environ | environment(job.kind, job.mode),
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as given:
        given.write(json.dumps(asdict(order)).encode())
    return process


def _lines(
    process: subprocess.Popen[bytes], pipe: IO[bytes], seconds: float
) -> Iterator[dict[str, Any]]:
    """Lines that the process prints, until it has ended.

    :raises TimeoutError: if it tells nothing for ``seconds``.
    """
    rest, last = b"", time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            # Not only until the pipe is closed: a process that a test started may hold it.
            ended = process.poll() is not None
            if selector.select(0 if ended else 1):
                data = os.read(pipe.fileno(), 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
                yield from map(json.loads, lines)
                last = time.monotonic()
                if data:
                    continue
            if ended:
                return
            if time.monotonic() - last > seconds:
                raise TimeoutError


def _stop(process: subprocess.Popen[bytes]) -> int:
    """End a process and its children, after its report of the running test; return the status."""
    for number in (signal.SIGABRT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    return process.wait()


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return last_lines(log.read().decode(errors="replace"))
