"""Kernels of PyTorch in regions that get a part of a value, with dimensions of size one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

Part = Callable[[torch.Tensor], torch.Tensor]

PARTS: dict[str, Part] = {
    "element": lambda v: v[5:6, 6:7],
    "row": lambda v: v[2:3],
    "end of a row": lambda v: v[3:4, 2:],
    "column": lambda v: v[:, 3:4],
    "row of columns": lambda v: v.t()[4:5],
    "selected": lambda v: v[2].unsqueeze(0),
    "of a split": lambda v: v.split(3)[1][1:2],
    "of a reshaped value": lambda v: v.view(2, 4, 8)[1, 2:3],
}

KERNELS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sort": lambda v: v.sort(-1),
    "cumsum": lambda v: v.cumsum(-1),
    "cumulative product": lambda v: v.cumprod(0),
    "median": lambda v: v.median(-1),
    "kthvalue": lambda v: v.kthvalue(1, -1),
    "mode": lambda v: v.mode(-1),
    "logcumsumexp": lambda v: v.logcumsumexp(0),
    "product": lambda v: v @ torch.ones(v.shape[-1], 3),
    "qr": torch.linalg.qr,
    "distance": lambda v: torch.cdist(v, v + 1),
    "scatter_add": lambda v: v.scatter_add(1, torch.zeros(v.shape, dtype=torch.int64), v),
    "scatter_reduce": lambda v: v.scatter_reduce(1, torch.zeros_like(v).long(), v, "prod"),
    "write": lambda v: v.index_put((torch.tensor([0]),), v[:1] * 2, accumulate=True),
    "interpolation": lambda v: torch.nn.functional.interpolate(v[None], scale_factor=2),
}


def tensors(found: Any) -> tuple[torch.Tensor, ...]:
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, id=name, marks=() if name == "element" else pytest.mark.slow)
        for name, part in PARTS.items()
    ],
)
def test_a_kernel_gets_the_part_that_it_is_called_with(fusing: Any, part: Part) -> None:
    def program(x: torch.Tensor) -> list[Any]:
        given = enumerate(KERNELS.values())
        return [tensors(kernel(part(x * 2 + n))) for n, kernel in given]

    x = torch.randn(8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = fusing(program, {"minimum": 1})(x)
    for name, mine, eager in zip(KERNELS, found, program(x), strict=True):
        for a, e in zip(mine, eager, strict=True):
            torch.testing.assert_close(a, e, msg=lambda said, name=name: f"{name}: {said}")


def test_a_part_of_one_element_is_written(fusing: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        sums = x.cumsum(0, dtype=torch.int16)
        return sums[0].index_put((torch.tensor([2]),), sums[1, :1])

    x = (torch.arange(64).view(8, 8) * 7 % 11 + 1).to(torch.int16)
    assert torch.equal(fusing(program, {"minimum": 1})(x), program(x))
