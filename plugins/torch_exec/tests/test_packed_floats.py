"""Numbers of a program as one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tj_torch.runtime.packed_floats import float32s, float64s, number_of_sum


@pytest.mark.parametrize(("pack", "dtype"), [(float64s, torch.float64), (float32s, torch.float32)])
def test_values_are_exact(pack: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    numbers = (0.1, -0.0, math.inf, math.nan, 5e-324, 1e-45, 3.4e38)
    found = pack(*numbers)
    assert found.dtype is dtype
    torch.testing.assert_close(
        found, torch.tensor(numbers, dtype=dtype), rtol=0, atol=0, equal_nan=True
    )
    assert math.copysign(1, found[1].item()) == -1
    found.mul_(2)  # it is memory of its own


@pytest.mark.parametrize("n", [3.41e38, -3.41e38, 1e300])
def test_a_number_that_float32_does_not_hold(n: float) -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        float32s(math.nan, n)
    assert float64s(n).item() == n


COUNTS = (0.0, -1.0, 7.0, 0.1, -0.5, 16777215.0, 16777216.0, 33554434.0, 3.4028234e38, 1e-45,
          math.inf, -math.inf, math.nan)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [1, -1, 3, 1 << 24])
@pytest.mark.parametrize("count", COUNTS)
def test_the_number_of_a_sum(count: float, number: int, dtype: torch.dtype) -> None:
    x = torch.tensor(count, dtype=dtype)
    found, wanted = number_of_sum(x, number), (x + number).item()
    assert type(found) is float
    assert found == wanted or (math.isnan(found) and math.isnan(wanted))
