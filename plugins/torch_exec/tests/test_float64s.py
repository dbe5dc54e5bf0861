"""Numbers of a program as one tensor."""

from __future__ import annotations

import math

import torch
from tj_torch.runtime.float64s import float64s


def test_values_are_exact() -> None:
    numbers = (0.1, -0.0, math.inf, math.nan, 5e-324, 1e308)
    found = float64s(*numbers)
    assert found.dtype is torch.float64
    torch.testing.assert_close(
        found, torch.tensor(numbers, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
    )
    assert math.copysign(1, found[1].item()) == -1
    found.mul_(2)  # it is memory of its own
