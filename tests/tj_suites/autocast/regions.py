"""The programs: regions and code around them, shared casts, writes, and modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tj_conformance.oracle.case import Cases
from torch import Tensor

__all__ = ["CASES", "bf16", "f16", "off"]

CASES = Cases()


def bf16(**options: Any) -> torch.autocast:
    """Autocast to bfloat16."""
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def f16() -> torch.autocast:
    """Autocast to float16."""
    return torch.autocast("cpu", dtype=torch.float16)


def off() -> torch.autocast:
    """No autocast."""
    return torch.autocast("cpu", enabled=False)


def given(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    """Make a factory of a tensor without a gradient."""
    return lambda: torch.randn(*shape).to(dtype)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    """Make a factory of a leaf that requires a gradient."""
    return lambda: torch.randn(*shape).to(dtype).requires_grad_()


def inner(*shape: int) -> Callable[[], Tensor]:
    """Make a factory of a tensor that requires a gradient and is no leaf."""
    return lambda: torch.randn(*shape).requires_grad_() * 1.5


def view_of_leaf(*shape: int) -> Callable[[], Tensor]:
    """Make a factory of a view that is a leaf to autograd; autocast caches no cast of a view."""
    return lambda: torch.randn(2, *shape)[0].requires_grad_()


X, W = given(4, 4), leaf(4, 4)

# ------------------------------------------------------------------------------- regions


@CASES(X, W)
def region(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ w


@CASES(X, W)
def region_of_half(x: Tensor, w: Tensor) -> Any:
    with f16():
        return x @ w


@CASES(X, W)
def before_and_after(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    with bf16():
        z = y @ w
    return z @ w.to(torch.bfloat16), y


@CASES(X, W)
def nested_off(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        with off():
            z = x @ w
        return y + z, y @ w


@CASES(X, W)
def nested_other_type(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ x
        with f16():
            z = x @ x
        return y, z, x @ w


@CASES(X, W)
def two_regions(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
    with bf16():
        return y + x @ w


@CASES(X, W)
def off_outside(x: Tensor, w: Tensor) -> Any:
    with off():
        with bf16():
            y = x @ w
        with bf16():
            return y, x @ w


@CASES(X, W)
@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated(x: Tensor, w: Tensor) -> Any:
    return x @ w, w @ x


@CASES(X, W, around=bf16)
def ambient(x: Tensor, w: Tensor) -> Any:
    return x @ w + 1


@CASES(X, W, around=f16)
def ambient_half(x: Tensor, w: Tensor) -> Any:
    return F.relu(x @ w) @ w


@CASES(X, W, around=bf16)
def ambient_off_inside(x: Tensor, w: Tensor) -> Any:
    with off():
        y = x @ w
    return y, y @ w


@CASES(X, W, around=lambda: bf16(cache_enabled=False))
def ambient_uncached(x: Tensor, w: Tensor) -> Any:
    return x @ w + w @ x


@CASES(X, W, options={"autocast": torch.bfloat16})
def option(x: Tensor, w: Tensor) -> Any:
    return x @ w + w @ x


@CASES(X, W, options={"autocast": torch.float16})
def option_half(x: Tensor, w: Tensor) -> Any:
    return F.linear(x, w).softmax(-1)


@CASES(X, W, options={"autocast": torch.bfloat16}, around=f16)
def option_inside_ambient(x: Tensor, w: Tensor) -> Any:
    return x @ w


@CASES(X, W, options={"autocast": torch.bfloat16})
def option_and_off(x: Tensor, w: Tensor) -> Any:
    with off():
        y = x @ w
    return y @ w


@CASES(X, W)
def decides_on_the_type(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        z = y * 2 if y.dtype is torch.bfloat16 else y * 3
        return z + x


@CASES(X, W, around=bf16)
def decides_on_the_type_around(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    z = y * 2 if y.dtype is torch.bfloat16 else y * 3
    return z + x


@CASES(X, W, options={"autocast": torch.bfloat16})
def decides_on_the_type_by_option(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    z = y * 2 if y.dtype is torch.bfloat16 else y * 3
    return z + x


@CASES(X, W)
def asks_for_the_mode(x: Tensor, w: Tensor) -> Any:
    with bf16():
        if torch.is_autocast_enabled("cpu"):
            x = x + 1
        return (x @ w).to(torch.get_autocast_dtype("cpu"))


@CASES(X, W)
def without_a_gradient(x: Tensor, w: Tensor) -> Any:
    with bf16(), torch.no_grad():
        return x @ w, w @ w


@CASES(X, W)
def in_inference_mode(x: Tensor, w: Tensor) -> Any:
    with torch.inference_mode(), bf16():
        return (x @ w).sum().item()


# ------------------------------------------------------------------------------- shared casts


@CASES(X, W)
def a_leaf_used_twice(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ w, (x * 3) @ w


@CASES(X, W)
def a_leaf_used_three_times(x: Tensor, w: Tensor) -> Any:
    with bf16():
        for _ in range(3):
            x = torch.tanh(x @ w)
        return x


@CASES(X, inner(4, 4))
def no_leaf_used_twice(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ w, (x * 3) @ w


@CASES(X, view_of_leaf(4, 4))
def a_view_used_twice(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ w, (x * 3) @ w


@CASES(X, W)
def uncached(x: Tensor, w: Tensor) -> Any:
    with bf16(cache_enabled=False):
        return x @ w, (x * 3) @ w


@CASES(X, W)
def partly_uncached(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        with bf16(cache_enabled=False):
            y = y @ w
        return y @ w


@CASES(X, W)
def cleared(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        torch.clear_autocast_cache()
        return y, (x * 3) @ w


@CASES(X, W)
def cast_first_without_gradients(x: Tensor, w: Tensor) -> Any:
    with bf16():
        with torch.no_grad():
            y = x @ w
        return y, x @ w, (x * 3) @ w


@CASES(X, W)
def cast_in_inner_region(x: Tensor, w: Tensor) -> Any:
    with bf16():
        with bf16():
            y = x @ w
        return y, (x * 3) @ w


@CASES(X, W)
def a_leaf_both_ways(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return (x @ w) + w, w.sum(), w @ w


@CASES(leaf(4, 4))
def only_a_leaf(w: Tensor) -> Any:
    with bf16():
        return w @ w @ w


@CASES(X, W, falls_back="of which autocast may keep a cast to another data type")
def other_type_is_kept(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        with f16():
            return y, w @ w


@CASES(X, W)
def einsum(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return torch.einsum("ij,jk,kl->il", x, w, w)


@CASES(X, leaf(4, 4, dtype=torch.float64))
def doubles_are_left(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ x, w @ w


@CASES(given(4, 4, dtype=torch.bfloat16), W)
def a_mixture_of_types(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ w, torch.cat([x, w]), x + w


# ------------------------------------------------------------------------------- writes


@CASES(X, W)
def a_leaf_written_inside(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        with torch.no_grad():
            w.mul_(2)
        return y.detach(), x @ w


@CASES(X, W)
def a_leaf_written_before_its_cast(x: Tensor, w: Tensor) -> Any:
    with bf16():
        with torch.no_grad():
            w.mul_(2)
        return x @ w, w @ x


@CASES(X, W)
def a_leaf_written_and_cleared(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        with torch.no_grad():
            w.mul_(2)
        torch.clear_autocast_cache()
        return y.detach(), x @ w


@CASES(X, W)
def a_leaf_written_uncached(x: Tensor, w: Tensor) -> Any:
    with bf16(cache_enabled=False):
        y = x @ w
        with torch.no_grad():
            w.mul_(2)
        return y.detach(), x @ w


@CASES(X, W)
def a_leaf_written_between_regions(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
    with torch.no_grad():
        w.mul_(2)
    with bf16():
        return y.detach(), x @ w


@CASES(X, W)
def an_optimizer_step_inside(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = (x @ w).sum()
        with torch.no_grad():
            w.sub_(torch.full_like(w, 0.25), alpha=2)
        z = x @ w
    return y.detach(), z


@CASES(X, W)
def an_argument_is_written(x: Tensor, w: Tensor) -> Any:
    with bf16():
        x.add_(1)
        y = x @ w
        x.mul_(2)
        return y, x @ w


@CASES(X, W, given(4, 4, dtype=torch.bfloat16))
def out_is_written(x: Tensor, w: Tensor, buffer: Tensor) -> Any:
    with bf16():
        buffer.copy_(x @ w.detach())
        return buffer * 2


@CASES(X, W)
def a_result_is_written(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        y.relu_()
        y[0] = 3
        return y @ w


@CASES(X, W)
def written_under_no_grad_by_data(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        w.data.mul_(2)
        return y.detach(), x @ w
