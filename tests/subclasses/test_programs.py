"""Programs of tensor subclasses against eager: values, types, what they hold, gradients, writes."""

from __future__ import annotations

import pytest
import torch
from tj_conformance.oracle.case import evaluate
from tj_suites.subclasses.programs import PROGRAMS

pytestmark = pytest.mark.sampled(10)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str) -> None:
    torch._dynamo.reset()
    case = PROGRAMS[name]
    verdict = evaluate(case)
    assert not verdict.differences, str(verdict)
    assert bool(verdict.fallbacks) == bool(case.falls_back), str(verdict)
    assert all(case.falls_back in reason for reason in verdict.fallbacks)


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 60
    assert sum(bool(case.falls_back) for case in PROGRAMS.values()) <= 5
