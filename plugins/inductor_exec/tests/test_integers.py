"""Fused programs of integers that overflow, or whose data type is smaller than C++'s ``int``."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch

OTHERS = (torch.int16, torch.uint8, torch.int32, torch.int64)


def extremes(dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors without dimensions, with one element, with a few, and with more than vectors have."""
    ends = torch.iinfo(dtype)
    values = torch.tensor([ends.min, ends.max, ends.min + 1, 5, 0] * 14, dtype=dtype)
    return [values[0], values[1], values[:1], values[:7], values]


@pytest.mark.parametrize(
    "dtype", [torch.int8, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in OTHERS)]
)
def test_absolute_values_and_signs(fusing: Any, dtype: torch.dtype) -> None:
    def program(*given: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for x in given:
            for y in (x.abs(), x.sign(), x.sgn(), torch.lcm(x, x)):
                made += [y >= 0, y % 7, y.clamp(min=0), y.float() / 3, torch.where(y < 0, 1, 2)]
            made += [x % (x.abs() | 1), (x * 2) // 2, x + 1 > x, -x.abs() - 1]
        return made

    given = extremes(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = fusing(program, {"minimum": 1})(*given)
    for mine, eager in zip(found, program(*given), strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("size", [3, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_division_by_zero_raises_the_error_of_eager(fusing: Any, size: int) -> None:
    def floored(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + 1) // y

    def rest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + 1) % y

    def truncated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.div(x + 1, y, rounding_mode="trunc")

    programs = (floored, rest, truncated)
    for program, dtype in itertools.product(programs, (torch.uint8, torch.int64)):
        x, y = torch.ones(2, size, dtype=dtype)
        compiled = fusing(program)
        compiled(x, y)
        y[size // 2] = 0
        with pytest.raises(RuntimeError) as eager:
            program(x, y)
        with pytest.raises(RuntimeError) as caught:
            compiled(x, y)
        assert str(caught.value).partition("\n")[0] == str(eager.value).partition("\n")[0]


@pytest.mark.slow
def test_truncated_quotients(fusing: Any) -> None:
    def program(*given: torch.Tensor) -> list[torch.Tensor]:
        pairs = itertools.product(given, (3, -3, given[0], given[2]))
        return [torch.div(x, y, rounding_mode="trunc") + 1 for x, y in pairs]

    given = [torch.arange(-9, 9) | 1, torch.arange(-9, 9).int(), torch.arange(-5, 6).to(torch.int8)]
    given = [*(x[x != 0][:9] for x in given), torch.arange(9).to(torch.uint8)]
    found = fusing(program, {"minimum": 1})(*given)
    for mine, eager in zip(found, program(*given), strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine, eager)
