"""Values that are compared with what was chosen from them: computed once, or the bits differ.

Kernels compute a row in vectors, and the rest of it one number at a time, with other roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_suites.fused import X, regions

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "tanh": torch.tanh,
    "exp": torch.exp,
    "gelu": F.gelu,
    "a wave": lambda x: torch.sin(x) * 2 + 1,
    "softmax": lambda x: F.softmax(x, -1),
}

CHOICES: dict[str, Function] = {
    "amax": lambda h: h.amax(-1),
    "amin of columns": lambda h: h.amin(0),
    "norm": lambda h: h.norm(p=torch.inf, dim=-1),
    "max of all": torch.max,
    "aminmax": lambda h: torch.sub(*torch.aminmax(h, dim=-1)),
    "relu": lambda h: F.relu(h - h.amin(-1, keepdim=True)),
    "abs": lambda h: (h - h.amax(-1, keepdim=True)).abs(),
    "clamp": lambda h: h.clamp(max=h.amax(-1, keepdim=True)),
    "maximum": lambda h: torch.maximum(h, h.amax(-1, keepdim=True)),
    "mask": lambda h: (h == h.amax(-1, keepdim=True)) * h * h,
    "sort": lambda h: F.relu(h - h.sort(-1).values[:, 1:2]),
}


def agree(jitted: Any, f: Any, *shape: int, dtype: torch.dtype = torch.float32) -> None:
    """Results and gradients are eager's; a wrong choice of an element is no rounding."""
    x, y = X(*shape, dtype=dtype), X(*shape, dtype=dtype)
    mine = [t.detach().clone().requires_grad_() for t in (x, y)]
    got, expected = jitted(*mine), f(x, y)
    weights = torch.rand_like(expected)
    (got * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)
    for a, b in zip(mine, (x, y), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_gradient_of_a_maximum(seed: int, fusing: Any) -> None:
    """No element was equal to the maximum, so that gradients were 0 / 0."""
    torch.manual_seed(seed)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * y).amax(-1)

    agree(fusing(f), f, 4, 7)


def test_gradient_of_a_maximum_with_symbolic_sizes(fusing: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * y).amax(-1)

    jitted = fusing(f)
    for rows in (16, 20, 33):
        agree(jitted, f, rows, 10)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("choice", CHOICES)
def test_gradients(
    choice: str, function: str, dynamic: bool, dtype: torch.dtype, fusing: Any
) -> None:
    torch.manual_seed(0)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return CHOICES[choice](FUNCTIONS[function](x * y))

    jitted = fusing(f, dynamic=dynamic)
    for shape in ((16, 10), (33, 5)) if dynamic else ((4, 7),):
        agree(jitted, f, *shape, dtype=dtype)


INSIDE: dict[str, Function] = {
    "root": lambda h: (h - h.amin(-1, keepdim=True)).sqrt(),
    "angle": lambda h: torch.acos(h / h.abs().amax()),
    "bins": lambda h: ((h - h.min()) / (h.max() - h.min()) * 10).ceil().long(),
    "equal": lambda h: (h == h.amax(-1, keepdim=True)).sum(-1),
    "place": lambda h: h.gather(-1, h.argmax(-1, keepdim=True)) - h.amax(-1, keepdim=True),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("inside", INSIDE)
def test_one_region(inside: str, function: str, dynamic: bool, fusing: Any) -> None:
    torch.manual_seed(0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return INSIDE[inside](FUNCTIONS[function](x))

    jitted = fusing(f, dynamic=dynamic)
    for shape in ((16, 7), (4, 7), (33, 10)) if dynamic else ((16, 7),):
        x = torch.randn(shape)
        got, expected = jitted(x), f(x)
        if got.is_floating_point():
            assert torch.equal(got.isnan(), expected.isnan())
            # Both functions have a vertical tangent where all eager elements are chosen.
            torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-3, equal_nan=True)
        else:
            assert (got != expected).sum() <= (inside == "bins")  # a number next to a boundary


def test_roots_of_distances_from_the_least(fusing: Any) -> None:
    """A number was less than the least one."""

    def f(x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(x)
        return (h - h.amin(-1, keepdim=True)).sqrt()

    torch.manual_seed(0)
    jitted = fusing(f)
    assert not jitted(torch.randn(16, 7)).isnan().any()
    assert len(regions(jitted)) == 1


def saved(jitted: Any) -> set[str]:
    trace = tj.last_trace(jitted)
    return {p.name for p in trace.outputs[2]} - {p.name for p in trace.inputs}


def test_only_what_is_compared_is_saved(fusing: Any) -> None:
    """A mean asks no element whether it is the mean."""

    def mean(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).mean(-1)

    def masked(x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x)
        return F.relu(torch.where(h > 0.5, h, -h) - h.mean())

    def greatest(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).amax(-1)

    for f, kept in ((mean, set()), (masked, {"relu"}), (greatest, {"tanh", "amax"})):
        jitted = fusing(f)
        jitted(X(8, 10)).sum().backward()
        assert saved(jitted) == kept
