"""Pools: places of maxima in the image, not in its padding; windows that are wider than it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.nn import functional

pytestmark = pytest.mark.sampled(2)

Shape = tuple[int, ...]

POOLS: dict[str, tuple[Shape, Any, tuple[Any, ...], dict[str, Any]]] = {
    "images": ((2, 9, 7), functional.max_pool2d, (3, 2, 1), {}),
    "sides that differ": ((2, 3, 11, 12), functional.max_pool2d, ((3, 2), (2, 3), (1, 0)), {}),
    "dilation": ((1, 2, 11, 12), functional.max_pool2d, (3, 2, 1), {"dilation": (2, 3)}),
    "dilation, ceil_mode": (
        (1, 2, 11, 12), functional.max_pool2d, ((3, 4), (1, 2), (1, 2)),
        {"dilation": 3, "ceil_mode": True},
    ),
    "wide windows": ((1, 2, 12, 9), functional.max_pool2d, (7, 1, 3), {}),
    "volumes": ((1, 2, 5, 6, 7), functional.max_pool3d, ((3, 2, 3), 2, 1), {}),
    "wide volumes": ((1, 1, 5, 6, 7), functional.max_pool3d, (3, 2, 1), {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbols"])
def test_maxima_of_infinities(fusing: Any, dynamic: bool) -> None:
    def pooled(*given: torch.Tensor) -> list[Any]:
        return [
            pool(x + 1, *sides, **more, return_indices=True)
            for x, (_, pool, sides, more) in zip(given, POOLS.values(), strict=True)
        ]

    def seen(f: Any, share: float) -> list[torch.Tensor]:
        torch.manual_seed(3)
        drawn = [torch.randn(shape) for shape, *_ in POOLS.values()]
        given = [torch.where(torch.rand_like(x) < share, -math.inf, x) for x in drawn]
        for x in given:
            x.requires_grad_()
        outs = f(*given)
        sum((values.nan_to_num(neginf=-1).sum() for values, _ in outs), torch.zeros(())).backward()
        gradients = [x.grad for x in given if x.grad is not None]
        return [*(p.detach() for out in outs for p in out), *gradients]

    fused = fusing(pooled, {"minimum": 1}, dynamic=dynamic)
    for share in (0.0, 0.7, 1.0):
        for mine, eager in zip(seen(fused, share), seen(pooled, share), strict=True):
            torch.testing.assert_close(mine, eager)


def test_maxima_of_the_least_integers(fusing: Any) -> None:
    def pooled(x: torch.Tensor) -> Any:
        return functional.max_pool2d(x + 0, 3, 2, 1, return_indices=True)

    fused = fusing(pooled)
    for dtype in (torch.int8, torch.uint8, torch.int64):
        x = torch.full((1, 1, 5, 5), torch.iinfo(dtype).min, dtype=dtype)
        for mine, eager in zip(fused(x), pooled(x), strict=True):
            assert torch.equal(mine, eager)


WIDE: dict[str, tuple[Shape, Any, dict[str, Any]]] = {
    "an EfficientNet's": ((2, 5, 2, 2), 2560, {}),
    "one side": ((2, 5, 3, 4), (777, 2), {"stride": (777, 1)}),
    "padding": ((1, 4, 3, 2), 777, {"padding": (3, 300)}),
    "padding that is not counted": ((1, 4, 3, 2), 777, {"padding": 2, "count_include_pad": False}),
    "another divisor": ((1, 4, 3, 2), 777, {"divisor_override": 5}),
    "lines": ((2, 5, 3), 777, {}),
}


@pytest.mark.parametrize("kind", WIDE)
def test_windows_wider_than_the_image(fusing: Any, kind: str) -> None:
    shape, kernel, more = WIDE[kind]
    pool: Any = functional.avg_pool1d if kind == "lines" else functional.avg_pool2d

    def pooled(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = pool(x * 2, kernel, ceil_mode=True, **more)
        return result + 1

    def seen(f: Any) -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, math.prod(shape)).view(shape).requires_grad_()
        y = f(x)
        y.square().sum().backward()
        return [y.detach(), x.grad]  # type: ignore[list-item]

    fused = fusing(pooled, {"minimum": 1})
    torch.testing.assert_close(seen(fused), seen(pooled))
    sources = [use.kernel.fused.source for use in tj.explain(fused).regions]
    assert sources
    assert not any(f"({n}L)" in source for source in sources for n in (777, 2560))
