"""Gradients of gradients: the program runs once more under PyTorch's own autograd."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from torch.nn import functional as F


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


def test_random_programs_cannot_run_again() -> None:
    x, _ = leaves()
    out = tj.jit(lambda x: F.dropout(x, 0.5))(x)
    with pytest.raises(RuntimeError, match="draws random numbers"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
