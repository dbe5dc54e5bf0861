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


@pytest.mark.parametrize("counts", [(-1,), (1, 2, -1)], ids=["fixed", "symbols"])
def test_gradients_of_logits_with_negative_limits(fusing: Any, counts: tuple[int, ...]) -> None:
    """They cut nothing off: outside of 0 and 1 gradients are NaN."""

    def f(x: torch.Tensor, limit: int) -> torch.Tensor:
        return torch.logit(x.sin(), limit)

    fused = fusing(f)
    for limit in counts:
        x = torch.tensor([-2.0, 0.5, 1.0, 4.0], requires_grad=True)
        (expected,) = torch.autograd.grad(f(x, limit).sum(), x)
        (found,) = torch.autograd.grad(fused(x, limit).sum(), x)
    assert expected.isnan().tolist() == [True, False, False, True]
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("counts", [(-1,), (1, 2, -1)], ids=["fixed", "symbols"])
@pytest.mark.parametrize("name", ["celu", "elu", "leaky_relu"])
def test_gradients_by_a_result_of_negative_slopes(
    fusing: Any, name: str, counts: tuple[int, ...]
) -> None:
    """The result does not tell them, and eager raises."""

    def f(x: torch.Tensor, slope: int) -> torch.Tensor:
        y: torch.Tensor = getattr(functional, name)(x.sin(), slope, inplace=True)
        return y * 2

    fused = fusing(f)
    for slope in counts:
        x = torch.randn(5, requires_grad=True)
        out = fused(x, slope)
        if slope > 0:
            out.sum().backward()
    with pytest.raises(RuntimeError, match="negative slope"):
        out.sum().backward()
