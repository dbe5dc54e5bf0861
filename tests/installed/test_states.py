"""Made-up programs whose state changes between calls, with regions that PyTorch's kernels run.

The long run takes all programs of the family `states`, and compiles their regions.
"""

from __future__ import annotations

import os

import pytest
from tj_conformance.installed.families import SEEDS
from tj_conformance.installed.holding import hold
from tj_conformance.installed.known import unlisted
from tj_conformance.installed.programs import states

SEED = SEEDS.start - 1 - int(os.environ.get("TJ_SAMPLE", "0"))


@pytest.mark.usefixtures("interpreting")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(6))
def test_programs_that_change(number: int) -> None:
    subject = list(states(SEED, 6))[number]
    (verdict,) = hold([subject], rehearse=False)
    assert not unlisted(verdict), "\n".join(verdict.problems)
