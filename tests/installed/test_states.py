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
from tj_inductor.adapter import names
from tj_suites.upstream.interpreting import interpreted

SEED = SEEDS.start - 1 - int(os.environ.get("TJ_SAMPLE", "0"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(6))
def test_programs_that_change(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where tj-inductor keeps the name that it found in PyTorch, perhaps in an earlier test.
    monkeypatch.setitem(vars(names), "compile_fx_inner", interpreted)
    subject = list(states(SEED, 6))[number]
    (verdict,) = hold([subject], rehearse=False)
    assert not unlisted(verdict), "\n".join(verdict.problems)
