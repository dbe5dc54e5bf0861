"""Floats that differ between calls: fused as tensors, and rounded as numbers are."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

Program = Callable[..., Any]

PROGRAMS: dict[str, Program] = {
    "product": lambda x, y, t: (x * t).sin() + y,
    "sum": lambda x, y, t: (x + t).sin() * (t + y),
    "difference": lambda x, y, t: (x - t).sin() * (t - y),
    "quotient": lambda x, y, t: (x / t).tanh() + t / y,
    "factor of a sum": lambda x, y, t: torch.add(x, y, alpha=t).sin(),
    "factor of a difference": lambda x, y, t: torch.sub(x, y, alpha=t).sin(),
    "addcmul": lambda x, y, t: torch.addcmul(x, x, y, value=t).sin(),
    "addcdiv": lambda x, y, t: torch.addcdiv(x, x, y, value=t).sin(),
    "lerp": lambda x, y, t: torch.lerp(x, y, t).sin(),
    "comparisons": lambda x, y, t: (x > t) * y + (x <= t) * x,
    "where": lambda x, y, t: torch.where(x > 0, x, t).sin() + torch.where(y > 0, t, y),
    "masked_fill": lambda x, y, t: x.masked_fill(y > 0, t).sin(),
    "clamp": lambda x, y, t: x.clamp(-t, t).sin() + y.clamp(max=t) + y.clamp_min(t),
    "below": lambda x, y, t: x.clamp(-0.5, t).sin() + y.clamp(0, t),
    "above": lambda x, y, t: x.clamp(t, 1).sin() + y.clamp(t, 0.25),
    "one bound": lambda x, y, t: x.clamp(t, None).sin() + y.clamp(None, t),
    "no number": lambda x, y, t: x.clamp(math.nan, t).sin() + y.clamp(t, math.inf),
    "two bounds": lambda x, y, t: x.clamp(t, t * 2).sin() + y.clamp(1 - t, t),
    "power": lambda x, y, t: (x.abs() ** t).sin() + y,
    "arithmetic": lambda x, y, t: (x * (1 - t)).sin() + y * (t * t + 2) / math.pi,
    "sigmoid": lambda x, y, t: torch.sigmoid(x * t + y) * t - (1 - t) * y,
    "integers": lambda x, y, t: (x.int() * t).sin() + y.long() * t,
    "no dimensions": lambda x, y, t: x.sum() * t + y.sum() / t,
    "writes": lambda x, y, t: x.mul_(t).add_(y, alpha=1 - t),
}

VALUES = (0.5, 0.25, 0.0, 1.0, -2.5, 1e-30, math.inf, math.nan, -0.0, 3)
TYPES = {torch.float32: 1e-5, torch.float64: 1e-7, torch.bfloat16: 0.1, torch.float16: 0.01}
"""Data types, each with the error allowed: a region does not round halves between operators."""


def results(f: Program, x: torch.Tensor, y: torch.Tensor, t: float, grad: bool) -> list[Any]:
    x, y = copy.deepcopy(x), copy.deepcopy(y)
    if grad:
        x.requires_grad_()
        y.requires_grad_()
    found = f(x, y, t)
    if found.requires_grad:
        found.float().sum().backward()
    return [found.detach(), found.stride(), x.grad, y.grad, x.detach(), x._version]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_of_each_call(name: str, grad: bool, dtype: torch.dtype, fusing: Any) -> None:
    f = PROGRAMS[name]
    grad = grad and name not in ("writes", "integers")
    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 5, dtype=dtype).unbind()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        jitted = fusing(f)
        for t in VALUES:
            wanted = results(f, x, y, t, grad)
            found = results(jitted, x, y, t, grad)
            torch.testing.assert_close(
                found, wanted, equal_nan=True, rtol=2 * TYPES[dtype], atol=TYPES[dtype]
            )


def test_a_region_takes_what_the_number_is_read_from(fusing: Any) -> None:
    jitted = fusing(PROGRAMS["sigmoid"])
    x, y = torch.randn(2, 600, 50).unbind()
    for t in (0.5, 0.25, 0.75):
        jitted(x, y, t)
    text = str(tj.last_trace(jitted))
    assert text.count("inductor.region_") == 1
    assert "torch.mul(" not in text


LARGE: dict[str, Program] = {
    "clamp": lambda x, t: x.clamp(0.0, t).sin(),
    "clamp_min": lambda x, t: x.clamp(min=t).sin(),
    "clamp_max": lambda x, t: x.clamp_max(t).sin(),
    "no number": lambda x, t: x.clamp(math.nan, t).sin(),
    "alpha": lambda x, t: torch.add(x, x, alpha=t).sin(),
    "addcmul": lambda x, t: torch.addcmul(x, x, x, value=t).sin(),
    "addcdiv": lambda x, t: torch.addcdiv(x, x, x, value=t).sin(),
    "lerp": lambda x, t: torch.lerp(x, x + 1, t).sin(),
    "masked_fill": lambda x, t: x.masked_fill(x > 0, t).sin(),
    "infinities": lambda x, t: 1 / (x * t) + 1 / (x + t) + torch.where(x > t, x, t).sin(),
    "comparisons": lambda x, t: (x > t) * x + (x == t) * x,
    "filled": lambda x, t: x.index_fill(0, torch.tensor([0]), t) * 2 + torch.full_like(x, t),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LARGE)
def test_a_float_that_the_data_type_does_not_hold(
    name: str, dtype: torch.dtype, fusing: Any
) -> None:
    x = torch.linspace(0.5, 2, 7).to(dtype)
    jitted = fusing(LARGE[name], strict=False)
    for t in (1.0, 2.0, 0.5, -3.4e39, 3.4e39, 1e300, -math.inf, 0.25):
        try:
            expected = LARGE[name](x, t)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)):
                jitted(x, t)
            continue
        torch.testing.assert_close(jitted(x, t), expected, equal_nan=True)
