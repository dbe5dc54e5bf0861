"""Fused programs that write parts of a tensor, with values or indices that they read from it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tj_core as tj
import torch

OTHERS = (torch.float64, torch.bfloat16, torch.int64, torch.int16)


def swapped(device: Any = None) -> torch.Tensor:
    """Indices of the second and the first row."""
    return torch.tensor([1, 0], device=device)


def shifted(v: torch.Tensor) -> torch.Tensor:
    v[1:] = v[:-1].clone()
    return v


def shifted_back(v: torch.Tensor) -> torch.Tensor:
    v[:-1].copy_(v[1:].clone())
    return v


def every_second(v: torch.Tensor) -> torch.Tensor:
    return v.slice_scatter(v[:4], 0, 0, 8, 2)


def turned(v: torch.Tensor) -> torch.Tensor:
    v[:] = v.t().clone()
    return v


def copied_rows(v: torch.Tensor) -> torch.Tensor:
    return v.index_copy(0, swapped(), v[:2])


def added_rows(v: torch.Tensor) -> torch.Tensor:
    return v.index_add(0, swapped(), v[:2])


def first_row_twice(v: torch.Tensor) -> torch.Tensor:
    return v.index_put((torch.tensor([0, 0]),), v[:1], accumulate=True)


def set_rows(v: torch.Tensor) -> torch.Tensor:
    v[swapped()] = v[:2].clone()
    return v


def rows_in_their_own_order(v: torch.Tensor) -> torch.Tensor:
    return v.index_put((v[:, 0].long() % 8,), torch.arange(8, dtype=v.dtype)[:, None])


def rows_added_in_their_own_order(v: torch.Tensor) -> torch.Tensor:
    return v.index_put((v[:, 0].long() % 8,), v, accumulate=True)


def rows_set_by_their_own_numbers(v: torch.Tensor) -> torch.Tensor:
    return v.index_put((v[:2, 0].long() % 8,), v[1:3] + v[2:4], accumulate=True)


def put(v: torch.Tensor) -> torch.Tensor:
    return v.put(torch.tensor([3, 2, 1, 0]), v[0, :4])


PROGRAMS = (
    shifted,
    shifted_back,
    every_second,
    turned,
    copied_rows,
    added_rows,
    first_row_twice,
    set_rows,
    rows_in_their_own_order,
    rows_added_in_their_own_order,
    rows_set_by_their_own_numbers,
    put,
)


def given(dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers of shape ``[8, 8]``, no row like another."""
    return (torch.arange(64).view(8, 8) * 7 % 11 + 1).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in OTHERS)]
)
def test_what_is_written_is_read_before(fusing: Any, dtype: torch.dtype) -> None:
    def computed(x: torch.Tensor) -> list[torch.Tensor]:
        # Prefix sums are in memory, and each is one program's: equal ones would be computed once.
        return [program((x + n).cumsum(0, dtype=x.dtype)) for n, program in enumerate(PROGRAMS)]

    x = given(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = fusing(computed, {"minimum": 1})(x)
    for program, mine, eager in zip(PROGRAMS, found, computed(x), strict=True):
        assert torch.equal(mine, eager), program.__name__


@pytest.mark.parametrize("program", PROGRAMS[:2], ids=lambda program: program.__name__)
def test_an_argument_is_shifted(fusing: Any, program: Any) -> None:
    def fill(x: torch.Tensor) -> torch.Tensor:
        return program(x) * 2

    x, y = given(torch.float32), given(torch.float32)
    jitted = fusing(fill, {"minimum": 1})
    for _ in range(2):
        assert torch.equal(jitted(x), fill(y))
        assert torch.equal(x, y)


def test_a_mask_is_not_copied(fusing: Any) -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        v = x.cumsum(0)
        v[v > 20] = 0
        return v

    def shift(x: torch.Tensor) -> torch.Tensor:
        return shifted(x.cumsum(0))

    x = given(torch.float32)
    for program, copies in ((masked, 0), (shift, 1)):
        jitted = fusing(program, {"minimum": 1})
        assert torch.equal(jitted(x), program(x))
        (use,) = tj.explain(jitted).regions
        assert use.kernel.fused.source.count("torch.ops.aten.clone.default(") == copies
