"""Backwards that users wrote, compiled by PyTorch with tj as the backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
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


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_backward_sees_what_eagers_sees(name: str) -> None:
    f, measure, _ = SITUATIONS[name]  # Dynamo says nothing of its graph breaks
    assert_equal(measure(WAYS["backend"](f)), measure(f))
