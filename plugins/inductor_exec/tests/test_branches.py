"""Choices between scalars in kernels without vectors: eager's values, and no branches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tj_inductor.branches import without_branches
from torch._inductor import config

Program = Callable[[torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Program] = {
    "relu": lambda x: x.relu() * 2,
    "relu6": lambda x: F.relu6(x) + 1,
    "where": lambda x: torch.where(x > 0, x * 3, x + 1),
    "where of numbers": lambda x: torch.where(x > 0, 1, -2) * x,
    "maximum": lambda x: torch.maximum(x, x.flip(0)) * 2,
    "minimum": lambda x: torch.minimum(x, x.flip(0)) * 2,
    "clamp": lambda x: x.clamp(-0.5, 0.75) * 2,
    "leaky": lambda x: F.leaky_relu(x.float(), 0.1) * 2,
    "largest": lambda x: x.amax(-1) * 2,
    "smallest": lambda x: x.amin(1) * 2,
}


def windows(x: torch.Tensor) -> torch.Tensor:
    """Windows ``[8, 49, 8]`` of images, channels last: Inductor makes no vectors for these."""
    return x.view(2, 8, 2, 7, 2, 7).permute(0, 2, 4, 3, 5, 1).reshape(-1, 49, 8)


def given(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 14, 14) * 3
    if dtype.is_floating_point:
        x.view(-1)[::7] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0] * 90)[
            : len(x.view(-1)[::7])
        ]
    return x.to(dtype)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, dtype: torch.dtype, fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return PROGRAMS[name](windows(x))

    x = given(dtype)
    found, expected = fusing(f)(x), f(x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    zero = expected == 0
    # Of two zeros, kernels for vectors take the second, and those for scalars the first.
    if dtype.is_floating_point and name not in ("maximum", "minimum", "largest", "smallest"):
        assert torch.equal(found.signbit()[zero], expected.signbit()[zero])


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_for_processors_without_vectors(name: str, fusing: Any) -> None:
    x = given(torch.float32)
    with config.patch({"cpp.simdlen": 1}):
        found = fusing(PROGRAMS[name])(x)
    torch.testing.assert_close(found, PROGRAMS[name](x), equal_nan=True)


def test_gradients(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return windows(x.relu()).clamp(max=1.5).sin()

    grads = []
    for g in (f, fusing(f)):
        x = torch.linspace(-3, 3, 2 * 8 * 14 * 14).view(2, 8, 14, 14).requires_grad_()
        g(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_scalars_of_a_kernel(texts: Any, fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = windows(x)
        return torch.where(y > 1, y.relu() * 2, torch.maximum(y, y * y))

    x = given(torch.float64)
    torch.testing.assert_close(fusing(f)(x), f(x), equal_nan=True)
    (text,) = texts.compiled
    kernel = text[text.rindex('extern "C"') :]
    assert re.search(r"std::max\(tmp|\? tmp|propagate_nan", kernel) is None


def test_what_is_computed_in_one_case_stays() -> None:
    lazy = 'extern "C" void kernel(float* x) { auto a = b ? c() : static_cast<float>(0.0); }'
    assert without_branches(lazy) == lazy
    plain = 'extern "C" void kernel(float* x) { auto a = b ? c : d; }'
    assert "auto a = chosen(b, c, d);" in without_branches(plain)
