"""Numbers in fused programs, which kernels round to the data type of a tensor."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tj_core as tj
import torch

HALVES = (torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow))


def hold(fusing: Any, program: Any, *given: torch.Tensor, **more: Any) -> None:
    """Check that a region of ``program`` returns the bits of eager, and that none fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = fusing(program, {"minimum": 1}, **more)(*given)
    for mine, eager in zip(found, program(*given), strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_constants_are_rounded(fusing: Any, dtype: torch.dtype, dynamic: bool) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        half, size = x.to(dtype), x.shape
        made = [
            torch.full(size, 1.1, dtype=dtype),
            torch.full_like(half, 1.1),
            half.new_full(size, 1.1),
            half.clone().fill_(1.1),
            torch.scalar_tensor(1.1, dtype=dtype),
            torch.ones(size, dtype=dtype) * 1.1,
            torch.full(size, 2049.0).to(dtype),
            torch.full(size, 2049).to(dtype),
        ]
        doubles = [torch.full(size, 0.1), torch.full(size, (1 << 24) + 1).float()]
        return [*(h.float() + x for h in made), *(h * half for h in made), *map(twice, doubles)]

    hold(fusing, program, torch.linspace(-1, 1, 37), dynamic=dynamic)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x.double() * 2


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_are_rounded_to_halves(fusing: Any, dtype: torch.dtype) -> None:
    """So that what is left of a difference is what eager has."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        made = [x + 1.1, x - 1.1, 1.1 - x, torch.fmod(x, 0.3), x.clone().sub_(0.3), x + 1e5]
        return [*made, *(y.float() * 3 for y in made)]

    hold(fusing, program, torch.tensor([1.1, 1.0, 0.3, 0.9, -3.0, 2.5e-3] * 7, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
def test_divisors_of_halves_are_exact(fusing: Any, dtype: torch.dtype) -> None:
    """A number, or a tensor without dimensions, that comes second: kernels do not round it."""

    def program(x: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for y in (0.3, 2049, *given):
            floored = [x // y, torch.floor_divide(x, y), torch.div(x, y, rounding_mode="floor")]
            made += [*floored, torch.div(x, y, rounding_mode="trunc"), x % y, x * y, x / y]
        made += [y * x for y in given]
        return [*made, x // x[3], torch.div(x, x.flip(0), rounding_mode="trunc")]

    values = [0.3, 0.6, 0.9, 1.1, -0.3, 2.1, -2.7, 33.0, 2048.0] * 7
    one = [torch.tensor(y) for y in (0.3, 2049)]
    hold(fusing, program, torch.tensor(values, dtype=dtype), *one, one[0].double())
