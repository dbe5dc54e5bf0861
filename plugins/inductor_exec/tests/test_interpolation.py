"""Nearest interpolation: of sizes that differ between calls, and by scales that eager ignores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_inductor.moves import is_window

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a factor": lambda x: F.interpolate(x.relu() * 2, scale_factor=2, mode="nearest").sin(),
    "a size": lambda x: F.interpolate(x.relu() * 2, size=x.shape[2:], mode="nearest").sin(),
    "exact": lambda x: F.interpolate(x.relu() * 2, scale_factor=2, mode="nearest-exact").sin(),
    "a pyramid": lambda x: F.interpolate(
        F.avg_pool2d(x.relu() * 2, 2), size=x.shape[2:], mode="nearest"
    ).sin(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_differ(name: str, fusing: Any) -> None:
    f = PROGRAMS[name]
    jitted = fusing(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for n in (8, 7, 12):
            mine, theirs = (torch.ones(2, 1, n, n + 1).requires_grad_() for _ in range(2))
            torch.testing.assert_close(jitted(mine), f(theirs))
            jitted(mine).cos().sum().backward()
            f(theirs).cos().sum().backward()
            torch.testing.assert_close(mine.grad, theirs.grad)


SCALES = [
    ((1, 2), (1.3, 1.3)), ((3, 4), (1.3, 1.5)), ((4, 4), (1.2, 1.2)), ((10, 4), (0.9, 1.2)),
    ((2, 1), (2.3, 2.9)), ((4, 3), (3.1, 2.0)), ((5, 4), (2.3, 1.3)), ((2, 3, 4), (1.3, 2.3, 2.0)),
    ((5,), (1.1,)),
]  # fmt: skip
"""Sizes and scales; most have a size that stays or doubles, whose scale eager may ignore."""


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8], ids=str)
def test_scales_of_sizes_that_stay(dtype: torch.dtype, mode: str, last: bool, fusing: Any) -> None:
    scaled = SCALES if mode == "nearest" else SCALES[::3]
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}

    def f(*given: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(given, scaled, strict=True)
        return [F.interpolate(x * 1, scale_factor=s, mode=mode) * 2 for x, (_, s) in pairs]

    given = []
    for sizes, _ in scaled:
        x = torch.arange(10 * math.prod(sizes)).view(2, 5, *sizes).to(dtype)
        layout = layouts.get(x.dim()) if last else None
        given.append(x.contiguous(memory_format=layout) if layout else x)
        given[-1].requires_grad_(dtype.is_floating_point)
    found, expected = fusing(f)(*given), f(*given)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()
    if dtype.is_floating_point:
        weights = [torch.rand_like(y) for y in expected]
        torch.testing.assert_close(
            torch.autograd.grad(found, given, weights),
            torch.autograd.grad(expected, given, weights),
        )


def test_scales_of_symbolic_sizes(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a, b, c = (F.interpolate(x * 1, scale_factor=s) for s in (1.3, 2.3, 2.0))
        return a.sin().sum() + b.cos().sum() + c.sum()

    jitted = fusing(f, dynamic=True)
    for shape in ((2, 3), (7, 9), (3, 2), (10, 4)):
        x = torch.arange(float(math.prod(shape))).view(1, 1, *shape)
        torch.testing.assert_close(jitted(x), f(x))


SINGLE = [(3, 1.7), (7, 1.4), (5, 1.1), (49, 2.05), (4, 3.1), (100, 0.49), (9, 2.3), (3, 2.5)]


@pytest.mark.parametrize(("size", "scale"), SINGLE)
def test_windows_are_those_of_eager(size: int, scale: float) -> None:
    row = torch.arange(float(size)).view(1, 1, 1, size)
    made = F.interpolate(row, scale_factor=(1.0, scale)).flatten().tolist()
    out = len(made)
    assert is_window(size, out, scale) is (made == [o * size // out for o in range(out)])
