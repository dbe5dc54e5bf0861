"""Families of programs as installed, and their figures.

``python -m tj_conformance.installed op_db:float32 module_db`` runs these families and prints each
program that differs, falls back or warns and is not in the table, and at last one row for each
family. ``op_db:float32/0/4`` is the first of four parts. Without arguments the families are listed,
with the number of programs that the default run of the tests takes of each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tj_conformance.databases.tally import Part
from tj_conformance.installed.families import FAMILIES, subjects_of
from tj_conformance.installed.holding import batches, hold
from tj_conformance.installed.known import unlisted

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run what ``arguments`` say; 1 if anything is wrong that is not listed."""
    if not arguments:
        print(*(f"{name}: {family.few}" for name, family in FAMILIES.items()), sep="\n")
    wrong = 0
    for given in arguments:
        name, _, part = given.partition("/")
        wrong += _family(name, Part.parse(part))
    return int(wrong > 0)


def _family(name: str, part: Part) -> int:
    start = time.monotonic()
    programs = regions = listed = wrong = 0
    for batch in batches(subjects_of(name, part)):
        for verdict in hold(batch):
            programs += 1
            regions += verdict.regions
            left = unlisted(verdict)
            listed += bool(verdict.problems) and not left
            wrong += bool(left)
            for problem in left:
                print(f"{verdict.subject.id}: {problem}", flush=True)
        print(f"{programs} programs, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"| {name} | {programs} | {regions} | {listed} | {wrong} |", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
