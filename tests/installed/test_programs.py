"""Every family of programs as users have tj installed: all plugins, no option, fused.

The default run takes a share of each family, the long run all. What differs by more than rounding,
falls back, warns, or has a region that fails has to be listed, with a reason, in
`tj_conformance.installed.known`, or as a graph break in the tables of its family.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tj_conformance.databases.tally import Part
from tj_conformance.installed.families import SEEN, sample, subjects_of
from tj_conformance.installed.holding import BATCH, hold
from tj_conformance.installed.known import LISTED, unlisted
from tj_conformance.sampling import FULL, batches
from tj_suites.installed.families import FAMILIES

if TYPE_CHECKING:
    from tj_conformance.installed.subject import Subject

SAMPLE = int(os.environ.get("TJ_SAMPLE", "0"))
UNFUSED = {
    *("op_db:bool", "op_db:int64", "dtypes", "found", "generated", "meaning", "orders", "states"),
    *SEEN,
}
"""Families of which a sample may have no region."""

MADE_UP = {"data", "dtypes", "generated", "orders", "states", "ways"}
"""Families of programs that are made of numbers."""

ELSEWHERE = {"packages"}
"""Families that are tests of another folder."""


def parts() -> Iterator[Any]:
    """Family, and the part of it; None: a sample."""
    for name, family in FAMILIES.items():
        if name in ELSEWHERE:
            continue
        for index in range(family.parts) if FULL else ():
            yield pytest.param(name, Part(index, family.parts), id=f"{name}-{index}")
        if not FULL and family.few:
            yield pytest.param(name, None, id=name)


@pytest.mark.parametrize(("family", "part"), list(parts()))
def test_as_installed(family: str, part: Part | None) -> None:
    if family == "models":
        pytest.importorskip("transformers", reason="the models are transformers'")
    subjects = (
        sample(family, SAMPLE, FAMILIES)
        if part is None
        else list(subjects_of(family, part, FAMILIES))
    )
    verdicts = [verdict for batch in batches(subjects, BATCH) for verdict in hold(batch)]
    found = [f"{v.subject.id}: {problem}" for v in verdicts for problem in unlisted(v)]
    assert not found, "\n".join(found)
    assert sum(v.regions for v in verdicts) or family in UNFUSED
    print(f"{len(verdicts)} programs, {sum(v.regions for v in verdicts)} regions")


@pytest.mark.skipif(not FULL, reason="makes all programs")
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in MADE_UP | ELSEWHERE])
def test_the_table_names_what_there_is(family: str) -> None:
    subjects: list[Subject] = list(subjects_of(family, families=FAMILIES))
    known = {s.name for s in subjects}
    assert len(known) == len(subjects)
    for entry in LISTED.get(subjects[0].family, ()):
        assert set(entry.programs) <= known
