"""Backwards that users wrote, compiled by PyTorch with tj as the backend."""

from __future__ import annotations

import pytest
from tj_conformance.gradients.own import WAYS
from tj_conformance.oracle.compare import assert_equal
from tj_suites.gradients.marks import OWN_BACKWARDS
from tj_suites.gradients.situations import SITUATIONS

pytestmark = OWN_BACKWARDS


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_backward_sees_what_eagers_sees(name: str) -> None:
    f, measure, _ = SITUATIONS[name]  # Dynamo says nothing of its graph breaks
    assert_equal(measure(WAYS["backend"](f)), measure(f))
