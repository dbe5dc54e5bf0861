"""Figures of a whole run: the samples of PyTorch's ``op_db`` that are equal to eager.

``python -m tj_conformance.databases.tally float32 complex64`` runs all samples in these data types
and ``python -m tj_conformance.databases.tally errors`` the calls that must raise; without arguments
both, in every data type. ``float32:2/8`` is the third of eight parts, so that several processes can
share the work. Each prints one line of figures after the disagreements with the tables of `known`,
as they are found. The exit status is 1 if there are any. ``TJ_PLUGINS=torch`` before it leaves out
other installed executors, whose results may differ within their tolerance.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tj_core as tj
import torch

from tj_conformance.databases import known
from tj_conformance.databases.errors import failing_operations, run_error_inputs
from tj_conformance.databases.op_db import operations, run_operation
from tj_conformance.oracle.result import Kind, Result
from tj_conformance.output import Output, suite_parser

__all__ = ["ALL", "Part", "Tally", "main", "part_of", "tally_dtype", "tally_errors", "tell"]


@dataclass
class Tally:
    """Figures of many results; ``disagreements`` are between them and the tables of `known`."""

    name: str
    entries: int = 0
    samples: int = 0
    not_compared: int = 0
    differing: Counter[Kind] = field(default_factory=Counter)
    breaking: int = 0
    disagreements: list[str] = field(default_factory=list)

    def add(
        self, result: Result, table: Iterable[known.Known], case: str, *, complete: bool = True
    ) -> list[str]:
        """Count one result, and return what `known` says otherwise."""
        self.entries += 1
        self.samples += result.samples
        self.not_compared += result.eager_errors
        self.differing += Counter(_differing(result))
        self.breaking += bool(result.fallbacks)
        texts = known.disagreements(result, table, case, complete=complete)
        found = [f"{result.name} [{case}]: {text}" for text in texts]
        self.disagreements += found
        return found

    def __str__(self) -> str:
        """One row: name, entries, samples equal to eager, differing, not compared, breaks."""
        data = self.as_dict()
        kinds = ", ".join(f"{n} {kind}" for kind, n in data.pop("differing").items())
        data["equal"] = f"{data['equal']} | {kinds or 0}"
        return f"| {' | '.join(map(str, data.values()))} |"

    def as_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        return {
            "name": self.name,
            "entries": self.entries,
            "equal": self.samples - sum(self.differing.values()),
            "differing": {kind.value: n for kind, n in self.differing.items()},
            "not_compared": self.not_compared,
            "breaking": self.breaking,
        }


def _differing(result: Result) -> Iterator[Kind]:
    """Yield the worst kind of difference of each sample that differs."""
    order = (Kind.ERROR, Kind.RESULT, Kind.ROUNDING)
    kinds: dict[str, set[Kind]] = {}
    for problem in result.problems:
        if problem.kind in order:
            kinds.setdefault(problem.where.partition(",")[0], set()).add(problem.kind)
    return (next(k for k in order if k in found) for found in kinds.values())


@dataclass(frozen=True, slots=True)
class Part:
    """Every ``count``-th entry, from ``index`` on."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """``index/count``, or all if ``text`` is empty.

        :raises ValueError: for any other text.
        """
        index, _, count = (text or "0/1").partition("/")
        part = cls(int(index), int(count))
        if not 0 <= part.index < part.count:
            raise ValueError(f"{text}: the parts of {part.count} are 0 to {part.count - 1}")
        return part

    def of(self, entries: list[Any]) -> list[Any]:
        """Select this part of ``entries``."""
        return entries[self.index :: self.count]


ALL = Part()


def tally_dtype(name: str, part: Part = ALL) -> Iterator[str | Tally]:
    """Disagreements as they are found in all samples of a data type, at last the figures."""
    dtype, tally = getattr(torch, name), Tally(name)
    jit = functools.partial(tj.jit, dynamic=False)
    for op in part.of(operations(dtype)):
        result = run_operation(op, dtype, None, per_callable=8, jit=jit)
        yield from tally.add(result, known.OPERATIONS, name)
    yield tally


def tally_errors(part: Part = ALL) -> Iterator[str | Tally]:
    """The same for the calls that must raise, as a whole and after a graph break."""
    for case, after_a_break in (("whole", False), ("after a break", True)):
        tally = Tally(f"errors, {case}")
        for op in part.of(failing_operations()):
            result = run_error_inputs(op, after_a_break=after_a_break)
            yield from tally.add(result, known.ERRORS, case)
        yield tally


def case(text: str) -> tuple[str, Part]:
    """``NAME`` or ``NAME:K/N``, as an argument of the command.

    :raises argparse.ArgumentTypeError: if there is no such data type, or no such part.
    """
    name, _, part = text.partition(":")
    names = [*known.DTYPES, "errors"]
    if name not in names:
        raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(names)}")
    return name, part_of(part)


def part_of(text: str) -> Part:
    """`Part.parse` for arguments of a command.

    :raises argparse.ArgumentTypeError: if there is no such part.
    """
    try:
        return Part.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a part is K/N, as 0/8: {error}") from None


def tell(output: Output, found: Iterable[str | Tally]) -> None:
    """Print disagreements, and figures."""
    for line in found:
        if isinstance(line, str):
            output.difference(line)
        else:
            output.figure(line, **line.as_dict())


def main(arguments: list[str]) -> int:
    """Run what ``arguments`` say; 1 if anything disagrees with the tables."""
    parser = suite_parser("tj_conformance.databases.tally")
    parser.add_argument(
        "cases", nargs="*", type=case, metavar="NAME[:K/N]", help="a data type, or errors"
    )
    given = parser.parse_args(arguments)
    output = Output(given.json)
    everything = [(name, ALL) for name in (*known.DTYPES, "errors")]
    for name, part in given.cases or everything:
        tell(output, tally_errors(part) if name == "errors" else tally_dtype(name, part))
    return output.end(output.differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
