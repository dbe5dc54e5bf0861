"""Processes that train as an example does, and a fault that kills one."""

from __future__ import annotations

import datetime
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torch import distributed

__all__ = ["MOMENTS", "PROGRAMS", "STEPS", "Fault", "Job"]

EXAMPLES = Path(__file__).parents[3] / "examples" / "distributed"
PROGRAMS = ("ddp", "fsdp2", "tensor_parallel")
STEPS, EVERY = 6, 2

MOMENTS = {
    "forward": "forward",
    "collective of the forward": "forward",
    "backward": "backward",
    "collective of the backward": "backward",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
}
"""Names of moments, and the part of a step in which each is."""

LATE = 0.6
"""Seconds by which the others come later, where a rank is to be killed in a collective."""

# Loaded once, and forked: PyTorch takes longer to import than a job to run.
FORK: Any = get_context("fork")


@dataclass(frozen=True)
class Fault:
    """``rank`` is killed in ``step``, ``delay`` seconds after a ``moment`` has begun.

    Inside a collective, the others have not come to it yet.
    """

    rank: int
    step: int
    moment: str
    delay: float

    @property
    def in_collective(self) -> bool:
        """Test if the rank is killed while it waits for the others."""
        return self.moment.startswith("collective")


@dataclass
class Job:
    """``size`` processes that run ``program`` in ``folder``, with a ``timeout`` of collectives."""

    program: str
    folder: Path
    size: int = 2
    timeout: float = 20.0
    attempts: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, fault: Fault | None = None) -> list[str]:
        """The word of each rank: ``done``, ``killed``, ``hangs``, or its error.

        ``seconds`` are then, by rank, those from the fault to the end of the rank.
        """
        self.attempts += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        processes = [
            FORK.Process(target=self.work, args=(rank, fault), daemon=True)
            for rank in range(self.size)
        ]
        for process in processes:
            process.start()
        return [self.ended(rank, process, fault) for rank, process in enumerate(processes)]

    def ended(self, rank: int, process: Any, fault: Fault | None) -> str:
        """Wait for a process; in a job with a fault, no longer than the timeout after it."""
        while process.is_alive():
            process.join(0.05)
            killed = self.said("killed")
            if killed and time.monotonic() - float(killed) > self.timeout + 15:
                process.kill()
                process.join()
                return "hangs"
        if fault is not None and rank == fault.rank:
            return "killed" if process.exitcode == -signal.SIGKILL else f"{process.exitcode}"
        ended, _, text = self.said(f"ended-{rank}").partition(" ")
        killed = self.said("killed")
        if killed and ended:
            self.seconds[str(rank)] = float(ended) - float(killed)
        return text or f"ended with {process.exitcode}"

    def say(self, name: str, text: str) -> None:
        """Write a word of this attempt."""
        (self.folder / f"{name}.{self.attempts}").write_text(text)

    def said(self, name: str) -> str:
        """A word of this attempt; empty if it has not been said."""
        path = self.folder / f"{name}.{self.attempts}"
        return path.read_text() if path.exists() else ""

    def work(self, rank: int, fault: Fault | None) -> None:
        """Train, in a process of its own."""
        clock = Clock(self, rank, fault)
        try:
            self.train(rank, clock.at)
            text = "done"
        except BaseException as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        self.say(f"ended-{rank}", f"{time.monotonic()} {text}")
        # On a busy machine the training may end before the thread that kills has its turn.
        if clock.killer is not None:
            clock.killer.join()
        # A group that has lost a rank cannot be left in order.
        os._exit(0)

    def train(self, rank: int, at: Callable[[str, int], None]) -> None:
        """Run the example, which calls ``at`` with each moment and its step."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the losses stand in a file
        sys.path.insert(0, str(EXAMPLES))
        training: Any = importlib.import_module("training")
        program: Any = importlib.import_module(self.program)
        store = distributed.FileStore(str(self.folder / f"store.{self.attempts}"), self.size)
        timeout = datetime.timedelta(seconds=self.timeout)
        distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=self.size, timeout=timeout
        )
        training.train(
            program.parallel,
            self.folder,
            STEPS,
            EVERY,
            self.program == "tensor_parallel",
            at,
        )
        distributed.destroy_process_group()


class Clock:
    """The moments of the steps of one rank, and what happens at them."""

    def __init__(self, job: Job, rank: int, fault: Fault | None) -> None:
        self.job, self.rank, self.fault = job, rank, fault
        self.last: tuple[str, float] | None = None
        self.longest: dict[str, float] = {}
        self.killer: threading.Thread | None = None

    def at(self, moment: str, step: int) -> None:
        """Note how long the moment before took; let the fault happen."""
        now = time.monotonic()
        if self.last is not None and step > EVERY:  # the first steps compile
            name, began = self.last
            self.longest[name] = max(self.longest.get(name, 0.0), now - began)
            self.job.say(f"lasts-{self.rank}", repr(self.longest))
        self.last = moment, now
        fault = self.fault
        if fault is None or (step, moment) != (fault.step, MOMENTS[fault.moment]):
            return
        if self.rank == fault.rank:
            self.killer = threading.Thread(target=self.die, args=(fault.delay,), daemon=True)
            self.killer.start()
        elif fault.in_collective:
            time.sleep(LATE)

    def die(self, delay: float) -> None:
        """End this process after ``delay`` seconds, as the system ends one without memory."""
        time.sleep(delay)
        self.job.say("killed", repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
