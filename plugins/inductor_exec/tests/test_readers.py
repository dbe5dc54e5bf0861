"""Values whose readers meet in one operator, which kernels do not write to memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tj_inductor.adapter.readers import STEPS, meet
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

Program = Callable[[torch.Tensor], Any]


def first(program: Program) -> torch.fx.Node:
    """The operator that ``program`` calls first."""
    graph = make_fx(program, tracing_mode="fake")(torch.rand(4, 6)).graph
    return next(node for node in graph.nodes if node.op == "call_function")


MEET: dict[str, Program] = {
    "in a product": lambda x: (s := x.sigmoid()) * (1 - s),
    "after others": lambda x: ((s := x.exp()) * 2).tanh() + (s + 1).sqrt() * s,
    "in one operator": lambda x: (s := x.exp()) * s,
    "in two, of which one reads the other": lambda x: ((s := x.exp()) + 1) / (s * (s + 1)),
}
APART: dict[str, Program] = {
    "two results": lambda x: ((s := x.exp()) + 1, s * 2),
    "a sum beside": lambda x: (s := x.exp()) / s.sum(),
    "a value of one row": lambda x: (s := x[0].exp()).expand(4, 6) * x + s,
    "another order": lambda x: (s := x[:, :4].exp()) + s.t(),
    "a product of matrices": lambda x: ((s := x.exp()) + 1) @ (s * 2).t(),
    "a result and what is made of it": lambda x: ((s := x.exp()), s * 2),
    "more than are followed": lambda x: far(x.exp()),
}


def far(s: torch.Tensor) -> torch.Tensor:
    """A product of ``s`` and what many operators make of it."""
    y = s
    for _ in range(STEPS + 1):
        y = y.sin()
    return y * s


@pytest.mark.parametrize("name", MEET)
def test_readers_that_meet(name: str) -> None:
    assert meet(first(MEET[name]))


@pytest.mark.parametrize("name", APART)
def test_readers_that_do_not_meet(name: str) -> None:
    node = first(APART[name])
    # A view comes before the exponential in some.
    while torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        node = next(iter(node.users))
    assert not meet(node)


ACTIVATIONS: dict[str, Program] = {
    "silu": F.silu,
    "mish": F.mish,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": lambda x: x.tanh() * x.sigmoid() + 0.5 * x,
    "chain": lambda x: F.silu(F.silu(F.silu(F.silu(x)))),
    "long chain": lambda x: F.mish(F.silu(F.mish(F.silu(F.mish(F.silu(F.mish(x))))))),
    "with sums": lambda x: F.silu(x) / (F.silu(x).sum(-1, keepdim=True) + 20),
}


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradients(name: str, dtype: torch.dtype, fusing: Any) -> None:
    program = ACTIVATIONS[name]

    def f(x: torch.Tensor) -> torch.Tensor:
        return program(x * 1.5) * 2

    given = torch.linspace(-6, 6, 13 * 17).view(13, 17).to(dtype)
    found = []
    for g in (f, fusing(f)):
        x = given.clone().requires_grad_()
        y = g(x)
        y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape).to(dtype))
        found.append((y, x.grad))
    loose = {"atol": 0.1, "rtol": 0.05} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 2e-5}
    torch.testing.assert_close(*found, **loose)


@pytest.mark.slow
def test_what_is_written_has_eagers_strides(texts: Any, fusing: Any) -> None:
    """Inductor wrote the gradient of ``silu`` as contiguous images, and read it across them."""
    block = (nn.Conv2d(32, 64, 1), nn.BatchNorm2d(64), nn.SiLU(), nn.Conv2d(64, 32, 1))
    model = nn.Sequential(*block, *copy.deepcopy(block)).to(memory_format=torch.channels_last)
    x = torch.randn(4, 32, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
    found = []
    for f in (copy.deepcopy(model), fusing(model)):
        (grad,) = torch.autograd.grad(f(x).square().mean(), x)
        found.append(grad)
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-4)
    assert texts.written
    assert not any("transpose_mxn<" in text for text in texts.written)
