"""Gradients of programs with branches, loops and scans inside, and of those left to PyTorch."""

from __future__ import annotations

import pytest
import tj_core as tj
from tj_conformance.gradients.regions import DECLINED, OPERATIONS, Program, results
from tj_conformance.oracle.versions import left_to_this_version
from tj_suites.gradients.regions import assert_equal, check_gradients

pytestmark = pytest.mark.sampled(4)


@pytest.mark.sampled(8)
# Eager's torch.cond compiles itself, and looks at the gradients of what it is given.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("f", OPERATIONS, ids=lambda f: f.__name__)
def test_gradients_are_eagers_and_on_the_trace(f: Program) -> None:
    check_gradients(f)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("f", DECLINED, ids=lambda f: f.__name__)
def test_what_is_left_to_pytorch(f: Program) -> None:
    jitted = tj.jit(f)
    for size in (1.0, -1.0):
        assert_equal(results(jitted, size), results(f, size))
    if not left_to_this_version(tj.stats(jitted).fallbacks):
        assert DECLINED[f] in str(tj.explain(jitted).declined)
