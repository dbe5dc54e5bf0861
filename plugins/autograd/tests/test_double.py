"""Gradients of gradients: the program runs once more under PyTorch's own autograd."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def f(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (F.layer_norm(torch.tanh(x @ w), (5,)) ** 2).sum(), (x * w.sum()).sin()


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)


def orders(fn: Any, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    a, b = fn(x, w)
    first = torch.autograd.grad(a + b.sum(), [x, w], create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), [x, w], create_graph=True)
    third = torch.autograd.grad(sum((g**3).sum() for g in second), [x, w])
    return [*first, *second, *third]


def test_first_second_and_third_order() -> None:
    jitted = tj.jit(f)
    for mine, theirs in zip(orders(jitted, *leaves()), orders(f, *leaves()), strict=True):
        assert torch.equal(mine, theirs)


def test_gradient_penalty() -> None:
    def penalty(fn: Any) -> Any:
        x, w = leaves()
        y = x * 1.5  # no leaf
        out = fn(y, w)[1].sum()
        (g,) = torch.autograd.grad(out, y, create_graph=True)
        (out + (g.norm() - 1) ** 2).backward()
        return x.grad, w.grad

    # One term goes through the backward program, one through its own gradient: the sum of the two
    # is rounded otherwise than where both are one graph.
    for mine, theirs in zip(penalty(tj.jit(f)), penalty(f), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_gradgradcheck() -> None:
    jitted = tj.jit(lambda x, w: torch.tanh(x @ w).exp().sum(1))
    x, w = (t.detach().double().requires_grad_() for t in leaves())
    assert torch.autograd.gradcheck(jitted, (x, w))
    assert torch.autograd.gradgradcheck(jitted, (x, w))


def test_hessian() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x**2).sum()

    x = torch.randn(4)
    mine = torch.autograd.functional.hessian(tj.jit(g), x)
    assert torch.equal(mine, torch.autograd.functional.hessian(g, x))


def test_an_input_written_in_between() -> None:
    x, w = leaves()
    b = x * 1
    out = tj.jit(lambda b, w: b + w.sum())(b, w)
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), w, create_graph=True)


def test_an_input_that_is_gone() -> None:
    w = torch.ones(3, requires_grad=True)
    out = tj.jit(lambda b, w: b + w)(torch.ones(3), w)
    with pytest.raises(RuntimeError, match="has been freed"):
        torch.autograd.grad(out.sum(), w, create_graph=True)


def writes_its_argument(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x + w.sum()
    x.mul_(2)
    return (y * x).sin()


def writes_without_autograd(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x + w.sum()).sin()
    with torch.no_grad():
        x.add_(1)
    return y**2


def draws(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5).sin() @ w * torch.rand(5)


def checkpointed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda a: F.dropout((a @ w).sin(), 0.5), x, use_reentrant=False)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g + x


def through_a_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Cube.apply(x @ w)


PROGRAMS = [writes_its_argument, writes_without_autograd, draws, checkpointed, through_a_function]


def twice(fn: Any) -> list[torch.Tensor]:
    """Gradients of gradients of an argument that is no leaf, and numbers drawn in between."""
    x, w = leaves()
    torch.manual_seed(1)
    y = x * 1.5
    out = fn(y, w)
    drawn = [torch.rand(2)]
    first = torch.autograd.grad(out.sum(), [x, w], create_graph=True)
    drawn.append(torch.rand(2))
    second = torch.autograd.grad(sum((g**2).sum() for g in first), [x, w])
    return [out, *first, *second, *drawn, torch.rand(2)]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_that_write_draw_and_run_again(f: Any) -> None:
    jitted = tj.jit(f)
    for mine, theirs in zip(twice(jitted), twice(f), strict=True):
        assert torch.equal(mine, theirs)
    assert tj.explain(jitted).declined == ()


def test_only_inputs_that_are_written_are_copied() -> None:
    x, w = leaves()
    norm = nn.BatchNorm1d(3)
    for f, copies in ((writes_its_argument, 1), (draws, 0), (lambda x, w: norm(x) @ w, 0)):
        jitted = tj.jit(f)
        out = jitted(x * 1, w)
        node = out.grad_fn
        while "Compiled" not in type(node).__name__:
            node = node.next_functions[0][0]
        assert len(node.copies) == copies


def test_batch_norm_in_training() -> None:
    def run(wrap: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.randn(6, 3, requires_grad=True)
        (g,) = torch.autograd.grad(wrap(model)(x).sum(), x, create_graph=True)
        ((g.norm(dim=1) - 1) ** 2).sum().backward()
        return [*(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]

    for mine, theirs in zip(run(tj.jit), run(lambda m: m), strict=True):
        assert torch.equal(mine, theirs)


def test_once_differentiable() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    def second(fn: Any) -> str:
        x, _ = leaves()
        (g,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError) as caught:
            g.sum().backward()
        return str(caught.value)

    assert second(tj.jit(lambda x: Once.apply(x))) == second(lambda x: Once.apply(x))
