"""Backwards that users wrote, of Functions and of custom operators: what they see as they run."""

from __future__ import annotations

import pytest
import tj_core as tj
from tj_conformance.gradients.own import WAYS
from tj_conformance.oracle.compare import assert_equal
from tj_suites.gradients.marks import OWN_BACKWARDS
from tj_suites.gradients.situations import SITUATIONS

pytestmark = OWN_BACKWARDS


@pytest.mark.parametrize("way", [way for way in WAYS if way != "backend"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_backward_sees_what_eagers_sees(name: str, way: str) -> None:
    f, measure, captured = SITUATIONS[name]
    compiled = WAYS[way](f)
    if captured:
        found = measure(compiled)
    else:
        with pytest.warns(tj.TjWarning, match="a torch.autograd.Function is left to PyTorch"):
            found = measure(compiled)
    assert_equal(found, measure(f))
