"""Fused programs with sums along a constant."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tj_core as tj
import torch

FILLED = {
    "bytes": lambda: torch.ones(300).cumsum(0, dtype=torch.uint8).float(),
    "signed bytes": lambda: torch.full((2, 300), 1).cumsum(1, dtype=torch.int8).float(),
    "truths": lambda: torch.full((300,), True).cumsum(0),
    "truths of another number": lambda: torch.full((300,), 2, dtype=torch.bool).cumsum(0),
    "integers of a fraction": lambda: torch.full((300,), 2.5, dtype=torch.int64).cumsum(0),
    "bytes from the largest": lambda: torch.full((300,), 255, dtype=torch.uint8).cumsum(0),
    "infinities": lambda: torch.full((300,), float("inf")).cumsum(0),
    "fractions": lambda: torch.full((2, 300), 0.1).cumsum(-1),
    "to float64": lambda: torch.full((300,), 1, dtype=torch.int32).cumsum(0, dtype=torch.float64),
    "to bfloat16": lambda: torch.full((300,), 1).cumsum(0, dtype=torch.bfloat16),
    "one number": lambda: torch.full((), 3).cumsum(0),
    "one float": lambda: torch.full((), 3.5).cumsum(0),
    "one complex number": lambda: torch.full((), 3.5j).cumsum(0).real,
    "nothing": lambda: torch.full((0,), 3).cumsum(0).sum(),
    "a truth of a fraction": lambda: torch.full((300,), 0.5, dtype=torch.bool) + 1,
    "an integer of a fraction": lambda: torch.full((300,), -2.5, dtype=torch.int32) / 2,
}
"""Programs of constants by their results."""


def test_constants_and_their_sums(fusing: Any) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [make() * x for make in FILLED.values()]

    x = torch.linspace(-2, 2, 300)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = fusing(program, {"minimum": 1})(x)
    for name, mine, eager in zip(FILLED, found, program(x), strict=True):
        assert mine.dtype == eager.dtype, name
        torch.testing.assert_close(mine, eager, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("value", [2, 2.5, -1.0, True], ids=repr)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.float32], ids=str)
def test_a_number_of_another_type(fusing: Any, value: Any, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        made = torch.full((5,), value, dtype=dtype)
        return made, made.cumsum(0) * x

    x = torch.arange(5.0)
    for mine, eager in zip(fusing(program, {"minimum": 1})(x), program(x), strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine, eager)
