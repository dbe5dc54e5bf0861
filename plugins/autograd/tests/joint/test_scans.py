"""Gradients of programs with scans."""

from __future__ import annotations

import pytest
from tj_conformance.gradients.regions import SCANS, Program
from tj_suites.gradients.regions import check_gradients

pytestmark = pytest.mark.sampled(4)


@pytest.mark.sampled(16)
# Eager's torch.cond compiles itself, and looks at the gradients of what it is given.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("f", SCANS, ids=lambda f: f.__name__)
def test_gradients_are_eagers_and_on_the_trace(f: Program) -> None:
    check_gradients(f)
