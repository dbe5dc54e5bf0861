"""Whole runs of numbered programs, in chunks: each runs in a process, which a program may end.

A suite's command has these arguments, and prints of its programs what differs. In a chunk's process
each program is announced, so that the one which ended it is known.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_conformance.output import Output, suite_parser

if TYPE_CHECKING:
    import argparse

__all__ = ["Suite", "note", "parser"]

MARK = "@ "
"""The start of lines of a chunk's process that are not for the user."""

_PROGRAM = re.compile(rf"{MARK}program (\d+)")


def parser(module: str, programs: int) -> argparse.ArgumentParser:
    """Make the parser of a whole run of ``module``; ``programs`` is the default of their number."""
    made = suite_parser(module)
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

    def only(self, given: argparse.Namespace, found: Iterable[str | None]) -> int:
        """Print the differences of one program, else its text; return the exit status."""
        output = Output(given.json)
        for text in found:
            if text is not None:
                output.difference(text)
        if not output.differences:
            output.say(self.text(given.only))
        return output.end(output.differences)

    def run(self, given: argparse.Namespace, name: str, said: Callable[[Counter[str]], str]) -> int:
        """Compare all requested programs; return the exit status.

        The figures are printed after ``name``, as ``said`` formats them.
        """
        output, figures, start = Output(given.json), Counter[str](), time.monotonic()
        for first in range(given.first, given.first + given.programs, self.size):
            left = given.first + given.programs - first
            self._in_a_process(first, min(self.size, left), figures, output)
            print(f"to {first + self.size}: {said(figures)}", file=sys.stderr, flush=True)
            if time.monotonic() - start > given.seconds:
                break
        output.figure(f"{name}: {said(figures)}", **{"different": 0, **figures})
        return output.end(figures["different"])

    def _in_a_process(self, first: int, count: int, figures: Counter[str], output: Output) -> None:
        """Compare ``count`` programs; one that ends the process counts as different."""
        command = [sys.executable, "-m", self.module]
        command += ["--chunk", str(first), "--programs", str(count)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        lines = done.stdout.splitlines()
        for tell, text in _told(lines, output):
            tell(text)
        numbers = [int(m[1]) for m in map(_PROGRAM.fullmatch, lines) if m]
        figures["programs"] += len(numbers)
        rest = (line.removeprefix(MARK) for line in lines if line.startswith(MARK))
        figures.update(name for name in rest if not name.startswith("program "))
        if figures.pop("done", 0):
            return
        last = numbers[-1] if numbers else first
        output.difference(f"# the process died ({done.returncode})\n{self.text(last)}")
        figures["different"] += 1
        if left := first + count - last - 1:
            self._in_a_process(last + 1, left, figures, output)


def _told(lines: Iterable[str], output: Output) -> Iterator[tuple[Callable[[str], None], str]]:
    """The texts that a chunk's process printed of its programs, each with how to print it."""
    text: list[str] = []
    for line in (*lines, MARK):
        if not line.startswith(MARK):
            text.append(line)
        elif text:
            yield (
                output.difference if line == f"{MARK}different" else output.say,
                "\n".join(text),
            )
            text = []
