"""Nearest interpolation of images whose sizes differ between calls, in training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

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
