"""Backwards that users wrote, of Functions and of custom operators: presence of gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tj_conformance.gradients.own import WAYS
from tj_suites.gradients.own_backwards import (
    FUNCTIONS,
    PROGRAMS,
    check,
)

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


BEFORE = "before one without gradient"


@pytest.mark.parametrize("program", [p for p in PROGRAMS if BEFORE not in p])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_is_missing_where_autograd_has_none(name: str, program: str) -> None:
    f = PROGRAMS[program](FUNCTIONS[name])
    check(WAYS["torch,autograd"](f), f, program)
