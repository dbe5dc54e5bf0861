"""Linear layers and products of matrices: gradients and costs, see `tj_suites.gradients.hot`."""

from __future__ import annotations

import pytest
import torch
from tj_suites.gradients.hot import case, checks_of
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)

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

(
    test_gradients_are_those_of_differences,
    test_results_and_gradients_are_eagers_to_the_bit,
    test_no_more_is_saved_or_run_than_eager_does,
) = checks_of(CASES, without={"matmul, empty"})
