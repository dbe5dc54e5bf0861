"""Linear layers and products of matrices: gradients and costs, see `tj_suites.gradients.hot`."""

from __future__ import annotations

import pytest
import torch
from tj_suites.gradients.hot import case, check_bits, check_costs, check_differences
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(8)

CASES = {
    "linear": case(lambda x, w, b: F.linear(x, w, b) * 1, (2, 3, 4), (5, 4), (5,)),
    "linear, no bias": case(F.linear, (3, 4), (5, 4)),
    "linear, vector": case(lambda x, w, b: F.linear(x, w, b) * 1, (4,), (5, 4), (5,)),
    "linear, no output features": case(F.linear, (3, 4), (4,)),
    "matmul, 1-D 1-D": case(torch.matmul, (4,), (4,)),
    "matmul, 1-D 2-D": case(torch.matmul, (4,), (4, 3)),
    "matmul, 2-D 1-D": case(torch.matmul, (3, 4), (4,)),
    "matmul, 2-D": case(torch.matmul, (3, 4), (4, 5)),
    "matmul, 3-D 1-D": case(torch.matmul, (2, 3, 4), (4,)),
    "matmul, 1-D 3-D": case(torch.matmul, (4,), (2, 4, 3)),
    "matmul, 3-D 2-D": case(torch.matmul, (2, 3, 4), (4, 5)),
    "matmul, 2-D 3-D": case(torch.matmul, (3, 4), (2, 4, 5)),
    "matmul, broadcast": case(torch.matmul, (2, 1, 3, 4), (3, 4, 2), more=True),
    "matmul, empty": case(torch.matmul, (0, 4), (4, 5)),
}
NO_DIFFERENCES = {"matmul, empty"}
"""Gradients that finite differences cannot check; they are compared with eager's."""


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name: str) -> None:
    check_differences(CASES[name], differentiable=name not in NO_DIFFERENCES)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_eagers_to_the_bit(name: str, dtype: torch.dtype) -> None:
    check_bits(CASES[name], dtype)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # PyTorch 2.10 says so
@pytest.mark.parametrize("name", CASES)
def test_no_more_is_saved_or_run_than_eager_does(name: str) -> None:
    check_costs(CASES[name])
