"""Whole runs of numbered programs, in chunks: each runs in a process, which a program may end.

A suite's command has these arguments, and prints of its programs what differs. In a chunk's process
each program is announced, so that the one which ended it is known.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tj_conformance.suites import usage

__all__ = ["Suite", "note", "parser"]

MARK = "@ "
"""The start of lines of a chunk's process that are not for the user."""

_PROGRAM = re.compile(rf"{MARK}program (\d+)")


def parser(module: str, programs: int) -> argparse.ArgumentParser:
    """Make the parser of a whole run of ``module``; ``programs`` is
    its default number of programs.
    """
    made = argparse.ArgumentParser(prog=usage(module))
    made.add_argument("--programs", type=int, default=programs)
    made.add_argument("--first", type=int, default=0, help="number of the first program")
    made.add_argument("--seconds", type=float, default=float("inf"), help="no new chunk after")
    made.add_argument("--only", type=int, help="compare one program, in all its ways")
    made.add_argument("--chunk", type=int, help="compare programs from this on, in this process")
    return made


def note(name: str, count: int = 1) -> None:
    """Count ``name`` in the figures of the run, from inside of a chunk's process."""
    print(f"{MARK}{name}\n" * count, end="")


@dataclass(frozen=True, slots=True)
class Suite:
    """Numbered programs that ``module`` compares, ``size`` of them in each process.

    ``compare`` returns the difference of a program, and is called in a chunk's process; ``text``
    returns its source.
    """

    module: str
    size: int
    compare: Callable[[int], str | None]
    text: Callable[[int], object]

    def chunk(self, first: int, count: int) -> None:
        """Compare programs in this process."""
        for number in range(first, first + count):
            print(f"{MARK}program {number}", flush=True)
            if (found := self.compare(number)) is not None:
                print(found)
                note("different")

    def run(self, given: argparse.Namespace, said: Callable[[Counter[str]], str]) -> Counter[str]:
        """Compare all requested programs; return the figures, which ``said`` formats."""
        figures, start = Counter[str](), time.monotonic()
        for first in range(given.first, given.first + given.programs, self.size):
            left = given.first + given.programs - first
            self._in_a_process(first, min(self.size, left), figures)
            print(f"to {first + self.size}: {said(figures)}", file=sys.stderr, flush=True)
            if time.monotonic() - start > given.seconds:
                break
        return figures

    def _in_a_process(self, first: int, count: int, figures: Counter[str]) -> None:
        """Compare ``count`` programs; one that ends the process counts as different."""
        command = [sys.executable, "-m", self.module]
        command += ["--chunk", str(first), "--programs", str(count)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        lines = done.stdout.splitlines()
        if found := "\n".join(line for line in lines if not line.startswith(MARK)):
            print(found, flush=True)
        numbers = [int(m[1]) for m in map(_PROGRAM.fullmatch, lines) if m]
        figures["programs"] += len(numbers)
        rest = (line.removeprefix(MARK) for line in lines if line.startswith(MARK))
        figures.update(name for name in rest if not name.startswith("program "))
        if figures.pop("done", 0):
            return
        last = numbers[-1] if numbers else first
        print(f"# the process died ({done.returncode})\n{self.text(last)}", flush=True)
        figures["different"] += 1
        if left := first + count - last - 1:
            self._in_a_process(last + 1, left, figures)
