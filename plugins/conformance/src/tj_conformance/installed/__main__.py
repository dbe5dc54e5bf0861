"""Families of programs as installed, and their figures.

``python -m tj_conformance.installed op_db:float32 module_db`` runs these families and prints each
program that differs, falls back or warns and is not in the table, and at last one row for each
family. ``op_db:float32/0/4`` is the first of four parts. Without arguments the families are listed,
with the number of programs that the default run of the tests takes of each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tj_conformance.databases.tally import Part, part_of
from tj_conformance.installed.families import FAMILIES, Family, subjects_of
from tj_conformance.installed.holding import BATCH, hold
from tj_conformance.installed.known import unlisted
from tj_conformance.output import Output, suite_parser
from tj_conformance.sampling import batches

if TYPE_CHECKING:
    from tj_conformance.installed.subject import Subject

__all__ = ["main"]


def main(
    arguments: Sequence[str], families: Mapping[str, Family] = FAMILIES, *, rehearse: bool = True
) -> int:
    """Run what ``arguments`` say of ``families``; 1 if anything is wrong that is not listed."""

    def family(text: str) -> tuple[str, Part]:
        name, _, part = text.partition("/")
        if name not in families:
            known = ", ".join(families)
            raise argparse.ArgumentTypeError(f"no family {name!r}; there are {known}")
        return name, part_of(part)

    parser = suite_parser("tj_conformance.installed")
    parser.add_argument("families", nargs="*", type=family, metavar="NAME[/K/N]", help="a family")
    given = parser.parse_args(arguments)
    output = Output(given.json)
    for name in () if given.families else families:
        output.figure(f"{name}: {families[name].few}", name=name, few=families[name].few)
    for name, part in given.families:
        _family(name, subjects_of(name, part, families), rehearse, output)
    return output.end(output.differences)


def _family(name: str, subjects: Iterable[Subject], rehearse: bool, output: Output) -> None:
    start = time.monotonic()
    programs = regions = listed = wrong = 0
    for batch in batches(subjects, BATCH):
        for verdict in hold(batch, rehearse=rehearse):
            programs += 1
            regions += verdict.regions
            left = unlisted(verdict)
            listed += bool(verdict.problems) and not left
            wrong += bool(left)
            for problem in left:
                output.difference(f"{verdict.subject.id}: {problem}")
        print(f"{programs} programs, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    figures = {"programs": programs, "regions": regions, "listed": listed, "wrong": wrong}
    output.figure(f"| {' | '.join(map(str, (name, *figures.values())))} |", name=name, **figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
