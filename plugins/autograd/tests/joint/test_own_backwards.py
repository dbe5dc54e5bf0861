"""Backwards that users wrote, of Functions and of custom operators: what they see as they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.own import WAYS
from tj_conformance.oracle.compare import assert_equal
from tj_suites.gradients.situations import SITUATIONS

# Dynamo makes one where it captures a call of a Function, and looks at ``.grad`` of values.
pytestmark = [
    pytest.mark.sampled(8),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.skipif(
        torch.__version__ < (2, 11), reason="PyTorch 2.10: Functions are left to PyTorch"
    ),
]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Reset torch.compile between programs, which share their code."""
    torch._dynamo.reset()
    return


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
