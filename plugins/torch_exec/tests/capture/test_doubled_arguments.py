"""A `torch.autograd.Function` that takes one tensor twice: two gradients, added as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from tj_torch.capture.dynamo.releases import captures_functions_in_steps
from torch.autograd import Function

pytestmark = pytest.mark.skipif(
    not captures_functions_in_steps(), reason="this PyTorch leaves Functions to themselves"
)


class Product(Function):
    """Function with two different gradients, whose order of addition shows in the last bit."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x * 0.7


class Apart(Function):
    """`Product` with a `setup_context`, and with another argument between."""

    @staticmethod
    def forward(x, k, y):
        return x * y * (1 if k is None else k)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], inputs[2])
        ctx.k = 1 if inputs[1] is None else inputs[1]

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y * ctx.k, None, g * x * 0.3


class Same(Product):
    """Function that compares its arguments with ``is``."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y if x is y else x + y


class Written(Function):
    """Function that writes one of its arguments, and so the other."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.mul_(2), y + 0

    @staticmethod
    def backward(ctx, g, h):
        return 2 * g, 2 * h


def of_a_value(x):
    h = x * 2.3
    return Product.apply(h, h) + Product.apply(x, x)


CAPTURED = {
    "each apart": lambda x: Product.apply(x * 2.3, x * 2.3) + Product.apply(x, x),
    "a value": of_a_value,
    "between others": lambda x: Product.apply(x, x) * x + x.sin() + Product.apply(x, x),
    "setup_context": lambda x: Apart.apply(x, 1.7, x) + Apart.apply(x, None, x) + x.cos(),
    "no tensor twice": lambda x: Product.apply(x, x.sin()) + Product.apply(x.cos(), x),
}

LEFT = {
    "identity": (lambda x: Same.apply(x, x), "asks what is what"),
    "written": (lambda x: Written.apply(h := x * 2, h), "writes an argument"),
}


def run(fn: Any) -> list[torch.Tensor]:
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    outputs = fn(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    g = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    return [*outputs, *torch.autograd.grad(outputs, x, [g] * len(outputs))]


@pytest.mark.parametrize("name", CAPTURED)
def test_gradients_are_added_in_the_order_of_eager(name: str) -> None:
    jitted = tj.jit(CAPTURED[name], plugins=["torch", "autograd"])
    assert_equal(run(jitted), run(CAPTURED[name]))
    assert_equal(run(jitted), run(CAPTURED[name]))
    assert tj.stats(jitted).fallbacks == ()


@pytest.mark.parametrize("name", LEFT)
def test_what_can_tell_is_left_to_pytorch(name: str) -> None:
    program, reason = LEFT[name]
    jitted = tj.jit(program, plugins=["torch", "autograd"])
    with pytest.warns(tj.TjWarning, match=reason):
        assert_equal(run(jitted), run(program))
