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


def one_of_equal_rows(v: torch.Tensor) -> torch.Tensor:
    return v[0].expand(3, 8).index_put((torch.tensor([1]),), v[1])


def added_to_one_of_equal_rows(v: torch.Tensor) -> torch.Tensor:
    return v[0].expand(3, 8).index_add(0, swapped(), v[:2])


def copied_to_one_of_equal_rows(v: torch.Tensor) -> torch.Tensor:
    return v[0].expand(3, 8).index_copy(0, torch.tensor([2]), v[:1] * 2)


def filled_column_of_equal_columns(v: torch.Tensor) -> torch.Tensor:
    return v[:, :1].expand(8, 5).index_fill(1, swapped(), 3) + 1


def diagonal_of_equal_rows(v: torch.Tensor) -> torch.Tensor:
    return v[0].expand(8, 8).diagonal_scatter(v[1]) * 2


def row_of_windows(v: torch.Tensor) -> torch.Tensor:
    return v[0].unfold(0, 3, 1).index_fill(0, torch.tensor([2]), 9) + 1


def element_of_overlapping_rows(v: torch.Tensor) -> torch.Tensor:
    rows = v[0].as_strided((3, 4), (2, 1))
    return rows.index_put((torch.tensor([0]), torch.tensor([2])), v[1, :1])


def diagonal_and_its_reverse(v: torch.Tensor) -> torch.Tensor:
    v.diagonal().add_(v.amax(0))
    v.diagonal().sub_(v.diagonal().flip(0))
    return v


def rows_and_their_reverse(v: torch.Tensor) -> torch.Tensor:
    v[1:5].sub_(v[1:5].flip(0))
    return v


def column_and_the_largest(v: torch.Tensor) -> torch.Tensor:
    v[:, 2].sub_(v[:, 2].amax())
    v[2].add_(v[:, 2])
    return v


def parts_that_overlap(v: torch.Tensor) -> torch.Tensor:
    rows = v.as_strided((6, 8), (8, 1), 8)
    rows.sub_(v.as_strided((6, 8), (8, 1)).amax(0))
    rows.add_(rows.t()[:6, :1] * rows)
    return v


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
    one_of_equal_rows,
    added_to_one_of_equal_rows,
    copied_to_one_of_equal_rows,
    filled_column_of_equal_columns,
    diagonal_of_equal_rows,
    row_of_windows,
    element_of_overlapping_rows,
    diagonal_and_its_reverse,
    rows_and_their_reverse,
    column_and_the_largest,
    parts_that_overlap,
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


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_in_one_place_of_any_number(fusing: Any, dynamic: bool) -> None:
    def one_row(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = (x * 3).expand(y.shape[0], -1)
        return rows.index_fill(0, torch.tensor([0]), 7) * 2

    jitted = fusing(one_row, {"minimum": 1}, dynamic=dynamic)
    for rows in (3, 1, 2, 5):
        x, y = torch.randn(4), torch.ones(rows)
        assert torch.equal(jitted(x, y), one_row(x, y)), rows


def test_values_of_any_size_are_shifted(fusing: Any) -> None:
    def shift(x: torch.Tensor) -> torch.Tensor:
        return shifted(x.cumsum(0)) * 2

    jitted = fusing(shift, {"minimum": 1}, dynamic=True)
    for rows in (4, 7, 2):
        x = given(torch.float32)[:rows]
        assert torch.equal(jitted(x), shift(x)), rows


def test_a_mask_is_not_copied(fusing: Any) -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        v = x.cumsum(0)
        v[v > 20] = 0
        return v

    x = given(torch.float32)
    jitted = fusing(masked, {"minimum": 1})
    assert torch.equal(jitted(x), masked(x))
    (use,) = tj.explain(jitted).regions
    assert "torch.ops.aten.clone.default(" not in use.kernel.fused.source


def _diagonals(a: torch.Tensor, b: torch.Tensor) -> None:
    a.diagonal().add_(a.sum(0))
    a.diagonal().mul_(a.diagonal().flip(0))


def _rows(a: torch.Tensor, b: torch.Tensor) -> None:
    a.copy_(a.softmax(-1))
    b.sub_(b.mean(0))


def _sums(a: torch.Tensor, b: torch.Tensor) -> None:
    a.add_(a.sum(1))
    a.mul_(a.max())
    b.div_(b.abs().sum(0) + 1)


@pytest.mark.parametrize("program", [_diagonals, _rows, _sums])
@pytest.mark.parametrize("apart", [0, 6, 36])
def test_arguments_that_share_memory_are_written_in_turn(
    fusing: Any, program: Any, apart: int
) -> None:
    def written(run: Any) -> torch.Tensor:
        memory = torch.linspace(-1, 2, 72).cos()
        with torch.no_grad():
            run(memory[:36].view(6, 6), memory[apart : apart + 36].view(6, 6))
        return memory

    jitted = fusing(program, {"minimum": 1})
    for _ in range(2):
        torch.testing.assert_close(written(jitted), written(program))
