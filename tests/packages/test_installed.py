"""Packages that others wrote train as users have tj installed: fused, and as near to eager."""

from __future__ import annotations

import pytest
from tj_conformance.databases.tally import Part
from tj_conformance.installed.families import FAMILIES, subjects_of
from tj_conformance.installed.holding import BATCH, hold
from tj_conformance.installed.known import unlisted
from tj_conformance.sampling import batches

PARTS = FAMILIES["packages"].parts


@pytest.mark.parametrize("index", range(PARTS))
def test_two_training_steps(index: int) -> None:
    subjects = subjects_of("packages", Part(index, PARTS))
    verdicts = [verdict for batch in batches(subjects, BATCH) for verdict in hold(batch)]
    found = [f"{v.subject.id}: {problem}" for v in verdicts for problem in unlisted(v)]
    assert not found, "\n".join(found)
    assert sum(v.regions for v in verdicts)
