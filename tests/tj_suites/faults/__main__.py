"""The command: ``python tests/tj_suites faults --runs 50``.

Each run kills one of two ranks of an example, at a moment that a seed chooses, sees that the other
ends by itself before the timeout, starts the job again, and compares its losses with those of a
job without faults.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tj_core as tj
import torch

from tj_suites.faults.job import LATE, MOMENTS, PROGRAMS, STEPS, Fault, Job

__all__ = ["main"]


class Suite:
    """Faults in jobs of some ``programs``, chosen by a ``seed``."""

    def __init__(self, programs: Sequence[str], folder: Path, seed: int) -> None:
        self.programs, self.folder = programs, folder
        self.chance = random.Random(seed)
        self.expected: dict[str, str] = {}
        self.lasts: dict[str, dict[str, float]] = {}

    def undisturbed(self, program: str) -> str:
        """The losses of a job without faults."""
        if program not in self.expected:
            job = Job(program, self.folder / program)
            said = job.run()
            if said != ["done"] * job.size:
                raise RuntimeError(f"{program} without faults: {said}")
            self.expected[program] = (job.folder / "losses.txt").read_text()
            self.lasts[program] = ast.literal_eval(job.said("lasts-0"))
        return self.expected[program]

    def fault(self, program: str, moment: str) -> Fault:
        """A fault at ``moment``, at any time that it lasts."""
        step = self.chance.randrange(1, STEPS)
        if moment == "checkpoint":
            step |= 1  # after steps 1, 3 and 5
        fault = Fault(self.chance.randrange(2), step, moment, LATE / 2)
        if fault.in_collective:
            return fault
        longest = self.lasts[program].get(moment, 0.0)
        return Fault(fault.rank, step, moment, self.chance.uniform(0, longest))

    def run(self, number: int) -> tuple[str, str, float]:
        """One run: its name, what is wrong with it if anything, seconds until the other ended."""
        program = self.programs[number % len(self.programs)]
        moment = [*MOMENTS][number // len(self.programs) % len(MOMENTS)]
        expected = self.undisturbed(program)
        job = Job(program, self.folder / f"{program}-{number}")
        fault = self.fault(program, moment)
        name = f"{program}, {moment} of step {fault.step}, rank {fault.rank}"
        said = job.run(fault)
        seconds = max(job.seconds.values(), default=0.0)
        wrong = ""
        if said[fault.rank] != "killed":
            wrong = f"the rank that is to be killed: {said[fault.rank]}"
        elif "hangs" in said:
            wrong = "a rank hangs"
        elif (again := job.run()) != ["done"] * job.size:
            wrong = f"the second attempt: {again}"
        elif (job.folder / "losses.txt").read_text() != expected:
            wrong = "other losses"
        print(f"{number}: {name}: {wrong or 'the same losses'}; {said[1 - fault.rank]}", end="")
        print(f" after {seconds:.2f} s", flush=True)
        shutil.rmtree(job.folder)
        return moment, wrong, seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a run went wrong."""
    parser = argparse.ArgumentParser(prog="python tests/tj_suites faults")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tj.Session()  # imports the plugins, for all processes
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(options.programs, Path(folder), options.seed)
        numbers = range(options.first, options.first + options.runs)
        found = [suite.run(number) for number in numbers]
    wrong = Counter(moment for moment, problem, _ in found if problem)
    longest = max((seconds for *_, seconds in found), default=0.0)
    print(f"{len(found)} runs in {time.monotonic() - began:.0f} s, {wrong.total()} went wrong")
    print(f"the other rank ended {longest:.2f} s after the fault at most")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
