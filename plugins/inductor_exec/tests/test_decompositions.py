"""Decomposed log_softmax and softmax of one value, which share calls in the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

Program = Callable[..., Any]


def operators(jitted: Any, which: str) -> list[str]:
    """The operators in the regions of a backward."""
    calls = [call for call in tj.last_trace(jitted, which).calls if call.body is not None]
    return [c.symbol.path.partition(".")[0] for call in calls for c in call.body.calls]


def entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Entropy of ``x`` along its last dimension, which has two
    names, and a loss of the same value.
    """
    spread = (F.softmax(x, -1) * F.log_softmax(x, 1)).sum(-1).mean()
    return F.cross_entropy(x, y) - spread


def apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Softmaxes along two dimensions."""
    return (F.softmax(x, 0) * F.log_softmax(x, 1)).sum()


def two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Softmaxes of two values."""
    return (F.softmax(x * 2, 1) * F.log_softmax(x, 1)).sum()


def unread(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The backward reads the log_softmax alone."""
    with torch.no_grad():
        weights = F.softmax(x, 1).sum(0)
    return (F.log_softmax(x, 1).sum(0) * weights).sum()


EXPONENTIALS = {entropy: 1, apart: 2, two: 2, unread: 1}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("f", EXPONENTIALS, ids=lambda f: f.__name__)
def test_the_backward_computes_a_softmax_once(f: Program, fusing: Any) -> None:
    value, y = torch.randn(6, 9), torch.arange(6)
    mine, theirs = (value.clone().requires_grad_() for _ in range(2))
    jitted = fusing(f)
    jitted(mine, y).backward()
    f(theirs, y).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    assert operators(jitted, "backward").count("exp") == EXPONENTIALS[f]


@pytest.mark.slow
def test_a_softmax_that_is_returned_is_for_its_own_gradient_alone(fusing: Any) -> None:
    """Whoever writes it, as one may in eager, leaves the gradient of the log_softmax as it is."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x * 2
        return F.log_softmax(x, -1), F.softmax(x, -1).detach()

    mine, theirs = (torch.ones(6, 9).requires_grad_() for _ in range(2))
    for g, x in ((fusing(f), mine), (f, theirs)):
        result, weights = g(x)
        weights.zero_()
        result.sin().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def repeated(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Equal calls, of which the second one is returned."""
    return F.softmax(x, -1), F.softmax(x, -1)


def unused(x: torch.Tensor) -> torch.Tensor:
    """A value that nobody reads, before an equal one."""
    F.softmax(x, -1)
    return F.softmax(x, -1)


def read_before(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A value that the backward reads, and an equal one that the caller gets."""
    first, second = F.layer_norm(x, (9,)), F.layer_norm(x, (9,))
    return second, (first * first).tanh()


def between(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """An equal value on both sides of the one that is returned."""
    first, second, third = F.softmax(x, -1), F.softmax(x, -1), F.softmax(x, -1)
    return second, first @ third.t()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("written", [False, True], ids=["", "written"])
@pytest.mark.parametrize("f", [repeated, unused, read_before, between], ids=lambda f: f.__name__)
def test_equal_values_of_which_one_is_returned(f: Program, written: bool, fusing: Any) -> None:
    """Whatever the caller writes into it, the others keep their values."""
    value, found = torch.randn(6, 9), []
    for g in (fusing(f), f):
        x = value.clone().requires_grad_()
        results = g(x)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        if written and len(results) > 1:
            with torch.no_grad():
                results.pop(0).zero_()
        (gradient,) = torch.autograd.grad([r.sin().sum() for r in results], x)
        found.append([*results, gradient])
    torch.testing.assert_close(*found)


# -inf has a probability of 0, and 200 one of 1, although its exponential is inf.
UNUSUAL = torch.tensor([[float("-inf"), 0.0, 1.0], [200.0, -200.0, 0.0], [7.0, 7.0, 7.0]])


@pytest.mark.slow
@pytest.mark.parametrize("value", [UNUSUAL, UNUSUAL.t()], ids=["rows", "transposed"])
def test_gradients_of_unusual_values(value: torch.Tensor, fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (F.softmax(x, -1) * 3 - F.log_softmax(x, -1)[:, -1:]).sin().sum()

    jitted = fusing(f)
    mine, theirs = (value.clone().requires_grad_() for _ in range(2))
    jitted(mine).backward()
    f(theirs).backward()
    torch.testing.assert_close(mine.grad, theirs.grad, equal_nan=True)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1), (1, 0)])
def test_several_results_have_their_own_ways_back(used: tuple[int, ...], fusing: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x * 2
        return F.softmax(x, -1).square().sum(), F.log_softmax(x, -1).sin().sum()

    jitted, value = fusing(f), torch.randn(6, 9)
    gradients = []
    for g in (jitted, f):
        x = value.clone().requires_grad_()
        results = list(g(x))
        for i in used:
            results[i].backward(retain_graph=i != used[-1])
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
