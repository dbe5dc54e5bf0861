"""Special values of activations, losses and powers in fused programs."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.nn import functional

VALUES = (math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 2.0, -2.0, 88.0, -88.0)


def same(found: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    """Check data types, places of NaN and infinities, signs of zeros, and values up to rounding."""
    if found is None or expected is None:
        return found is expected
    torch.testing.assert_close(found, expected, equal_nan=True)
    return bool(((torch.signbit(found) == torch.signbit(expected)) | expected.isnan()).all())


def program(x: torch.Tensor) -> list[torch.Tensor]:
    zeros, ones = torch.zeros_like(x), torch.ones_like(x)
    return [
        functional.elu(x, math.inf),
        functional.elu(x, -1.0),
        functional.smooth_l1_loss(x, zeros, reduction="none"),
        functional.soft_margin_loss(x, ones, reduction="none"),
        x**0.5,
        x**-0.5,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_branches(fusing: Any, dtype: torch.dtype) -> None:
    def seen(f: Any) -> list[torch.Tensor | None]:
        x = torch.tensor(VALUES * 2, dtype=dtype, requires_grad=True)
        outs = f(x)
        gradients = (torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for out in outs)
        return [*(out.detach() for out in outs), *gradients]

    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = seen(fusing(program, {"minimum": 1}))
    assert all(same(mine, eager) for mine, eager in zip(found, seen(program), strict=True))
