"""A program of sizes that depend on data in each way, with regions that PyTorch's kernels run.

The default run takes one of them. The long run takes all programs of the family `data`, and
compiles their regions.
"""

from __future__ import annotations

import os

import pytest
from tj_conformance.data.programs import made, unexpected
from tj_conformance.installed.families import SEEDS
from tj_conformance.installed.holding import hold
from tj_conformance.installed.known import unlisted
from tj_conformance.installed.programs import data
from tj_conformance.programs.aliasing import Report
from tj_conformance.ways.running import WAYS

SEED = SEEDS.start - 1 - int(os.environ.get("TJ_SAMPLE", "0"))


@pytest.mark.usefixtures("interpreting")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("number", range(len(WAYS)), ids=list(WAYS))
def test_a_program_of_each_way(number: int) -> None:
    subject = list(data(SEED, len(WAYS)))[number]
    (verdict,) = hold([subject], rehearse=False)
    assert not unlisted(verdict), "\n".join(verdict.problems)


def test_a_seed_and_a_number_make_one_program() -> None:
    assert str(made(SEED, 3)) == str(made(SEED, 3)) != str(made(SEED, 4))


def test_a_fallback_that_is_no_graph_break_is_a_fault() -> None:
    report = Report((), fallbacks=("graph break: an index that depends on data", "not captured: x"))
    assert unexpected(report) == ["not captured: x"]
