"""Graphs that Inductor compiles to something else, or not at all, unless they are changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

Program = Callable[..., Any]


def put_twice(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
    y = x * 2
    y[i] = v
    joined = torch.cat([y, x + 1])
    y.index_put_((i,), v, accumulate=True)
    return joined, y.sum(0)


def put_once(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
    y = x * 2
    joined = torch.stack([y, x + 1])
    y.index_put_((i,), v, accumulate=True)
    return joined, y * 3


def argument(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
    parts = torch.cat([x[:2], x[2:]])
    x[i] = v
    joined = torch.cat([x, parts])
    x.index_put_((i,), v, accumulate=True)
    return parts, joined


def slices(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
    y = x * 2
    joined = torch.cat([y[:2], y, x + 1])
    y[1:3] = v
    y[:, 1] = 7
    return joined, y.sum(0)


def parts(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
    """As in a scan by halves: rows of values are joined, and the values written."""
    y = x * 2
    joined = torch.cat([y[:1], y[1:] + x[:-1], y.t()[:1].expand(2, -1).t()[:, :1].expand(-1, 3)])
    y[i] += joined[:2] + v
    y[1:] = y[1:] * 3
    return joined, y.sum(0)


@pytest.mark.parametrize("program", [put_twice, put_once, argument, slices, parts])
def test_parts_that_are_written_later(program: Program, fusing: Any) -> None:
    jitted = fusing(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for rows in (4, 5, 9, 3):
            x, v, i = torch.randn(rows, 3), torch.randn(2, 3), torch.tensor([0, 1])
            y = x.clone()
            torch.testing.assert_close(jitted(y, i, v), program(x, i, v))
            assert torch.equal(x, y)


def test_a_part_that_is_made_of_another_is_not_copied_first(fusing: Any) -> None:
    """As in a scan by halves; a small part of a large value is copied, and written in place."""

    def halves(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y[1::2] = y[::2] * y[1::2]
        y[2::2] = y[1:-1:2] + y[2::2]
        return y * 2

    def row(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y[3] = y[2] * y[3]
        return y.cumsum(0)

    for program, copies in ((halves, 0), (row, 1)):
        jitted = fusing(program, dynamic=False)
        for _ in range(2):
            x = torch.randn(16, 3)
            torch.testing.assert_close(jitted(x), program(x))
        (use,) = tj.explain(jitted).regions
        assert use.kernel.fused.source.count("aten.clone.default(") == copies


def test_the_largest_of_several_sizes(fusing: Any) -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        x[:, n:] = x[:, :-n].clone() * 1
        x[:, :n] = 0
        return x.sum()

    jitted = fusing(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for n in (1, 2, 3, 15, 8):
            x = torch.randn(3, 20)
            y = x.clone()
            torch.testing.assert_close(jitted(y, n), program(x, n))
            assert torch.equal(x, y)
