"""A made-up program in each way to run it, with regions that PyTorch's kernels run.

The long run takes all programs of the family `ways`, and compiles their regions.
"""

from __future__ import annotations

import os

import pytest
from tj_conformance.installed.families import SEEDS
from tj_conformance.installed.holding import hold
from tj_conformance.installed.known import unlisted
from tj_conformance.installed.programs import ways
from tj_conformance.ways.running import WAYS

SEED = SEEDS.start - 1 - int(os.environ.get("TJ_SAMPLE", "0"))


@pytest.mark.usefixtures("interpreting")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(len(WAYS)), ids=list(WAYS))
def test_a_program_of_each_way(number: int) -> None:
    subject = list(ways(SEED, len(WAYS)))[number]
    (verdict,) = hold([subject], rehearse=False)
    assert not unlisted(verdict), "\n".join(verdict.problems)
