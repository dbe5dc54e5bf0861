"""Programs inside of checkpoints, and gradient rules that fire in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from tj_core.extend import (
    Replacement,
    RuleTable,
    Stage,
    Transform,
)
from tj_torch.capture.dynamo.releases import captures_functions_in_steps
from torch.utils.checkpoint import (
    checkpoint,
)

pytestmark = pytest.mark.sampled(16)

SIZE = 64


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, SIZE * SIZE).reshape(SIZE, SIZE)
    return x.clone().requires_grad_(), (x / SIZE).t().clone().requires_grad_()


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t() * 2, x.t() @ g * 3


def with_function(x, w):
    return checkpoint(lambda a, b: Product.apply(a, b).sin(), x, w, use_reentrant=False).sum()


def with_cond(x, w):
    def body(a, b):
        return torch.cond(a.sum() > -99, lambda c: (c @ b).sin(), lambda c: c.cos(), (a,))

    return checkpoint(body, x, w, use_reentrant=False).sum()


def with_autocast(x, w):
    def body(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (a @ b).sin()

    return checkpoint(body, x, w, use_reentrant=False).float().sum()


def under_autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return checkpoint(lambda a, b: (a @ b).sin(), x, w, use_reentrant=False).float().sum()


def with_no_grad(x, w):
    def body(a, b):
        with torch.no_grad():
            scale = a.abs().amax()
        return (a @ b) / scale

    return checkpoint(body, x, w, use_reentrant=False).sum()


def with_writes(x, w):
    def body(a, b):
        y = a @ b
        y.mul_(2)
        return y.sin_()

    return checkpoint(body, x, w, use_reentrant=False).sum()


def with_many_outputs(x, w):
    y, (z, n), _ = checkpoint(lambda a, b: (a @ b, (a.sin(), 3), a), x, w, use_reentrant=False)
    return (y * n + z).sum()


def with_keyword_arguments(x, w):
    def body(a, scale, w):
        return a.sin() @ w * scale

    return checkpoint(body, x, scale=2.0, w=w, use_reentrant=False).sum()


def in_a_function_of_torch_func(x, w):
    def loss(a):
        return (a @ w).sin().sum()

    return checkpoint(lambda a: torch.func.grad(loss)(a) * a, x, use_reentrant=False).sum()


FUNCTIONS = [with_function] if captures_functions_in_steps() else []
"""A `torch.autograd.Function` is left to PyTorch up to 2.10, and the checkpoint with it."""


@pytest.mark.parametrize(
    "f",
    [*FUNCTIONS, with_cond, with_autocast, under_autocast, with_no_grad, with_writes,
     with_many_outputs, with_keyword_arguments],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_may_stand_inside(f: Callable[..., Any]) -> None:
    jitted = tj.jit(f, check=2)
    for _ in range(2):
        results = []
        for g in (f, jitted):
            x, w = inputs()
            out = g(x, w)
            out.backward()
            results.append((out.detach(), x.grad, w.grad))
        assert_equal(results[1], results[0])
    assert tj.stats(jitted).fallbacks == ()


def test_a_gradient_transform_of_torch_func_inside_says_what_eager_says() -> None:
    """PyTorch refuses hooks on saved tensors, which checkpoints are, inside of torch.func."""
    for f in (in_a_function_of_torch_func, tj.jit(in_a_function_of_torch_func)):
        with pytest.raises(RuntimeError, match="saved tensor hooks"):
            f(*inputs())


def test_rules_apply_inside_and_what_runs_again_is_the_edited_program() -> None:
    rules: RuleTable[Any] = RuleTable("swap")
    rules.set(
        "torch.sin",
        lambda call, edit: Replacement(
            (edit.call("torch.cos", *call.args, outputs=(call.outputs.name,)),)
        ),
    )
    swap = Transform("swap", lambda t, c: c.rewrite(t, rules), after=Stage.ACQUIRED)
    jitted = tj.jit(
        lambda x, w: checkpoint(torch.sin, x @ w, use_reentrant=False).sum(), transforms=[swap]
    )
    x, w = inputs()
    (mine,) = torch.autograd.grad(jitted(x, w), [x])
    (expected,) = torch.autograd.grad((x @ w).cos().sum(), [x])
    assert_equal(mine, expected)
