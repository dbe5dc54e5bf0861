"""Operations that return a view of something of their own, as what a program returns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch
from tj_autograd import boundary
from torch.nn import functional as F

X, W, B = torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5)
Program = Callable[..., torch.Tensor]


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, b)


def product(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x @ w.t()


def two(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.linear(x, w, b)
    return y, y.sin().sum()  # y is saved for the backward


def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x[0], w[:, :3, None], b)


def leaves() -> list[torch.Tensor]:
    return [t.clone().requires_grad_() for t in (X, W, B)]


@pytest.mark.parametrize("f", [linear, product, convolved])
def test_gradients_are_part_of_the_trace(f: Program) -> None:
    results = []
    jitted = tj.jit(f)
    for run in (jitted, f):
        args = leaves()
        out = run(*args)
        results.append([out, *torch.autograd.grad(out.sin().sum(), args, allow_unused=True)])
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert tj.explain(jitted).declined == ()


@pytest.mark.parametrize("f", [linear, convolved])
def test_what_is_returned_may_be_written_to(f: Program) -> None:
    results = []
    for run in (tj.jit(f), f):
        args = leaves()
        out = run(*args)
        out.mul_(2)
        results.append([out, *torch.autograd.grad(out.sin().sum(), args, allow_unused=True)])
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_writing_to_what_is_saved_is_refused() -> None:
    jitted = tj.jit(two)
    for run in (jitted, two):
        y, loss = run(*leaves())
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert tj.explain(jitted).declined == ()


def test_memory_that_is_saved_under_another_name_is_not_given_out() -> None:
    """What is written to later must not be seen by the backward unnoticed."""
    whole = torch.randn(6)
    view = whole[:]
    (root,), (saved, same) = boundary._as_roots((view,), [whole, view])
    assert torch.equal(root, view) and saved is whole and same is root
    assert root.data_ptr() != whole.data_ptr() and not root._is_view()
    (root,), _ = boundary._as_roots((view,), [view])
    assert root.data_ptr() == whole.data_ptr() and not root._is_view()


def test_two_results_that_share_memory_are_left_to_pytorch() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.chunk(x * 2, 2)

    jitted = tj.jit(f)
    for run in (jitted, f):
        x = torch.randn(4, 3, requires_grad=True)
        a, b = run(x)
        with torch.no_grad():
            whole = a._base
        assert whole is not None and whole is b._base
