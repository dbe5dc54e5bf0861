"""Common subexpressions in PyTorch programs, merged where gradients and identities allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_jits
from torch.nn import functional as F


def operations(jitted: Any) -> list[str]:
    return [call.symbol.name for call in tj.last_trace(jitted).calls]


def test_work_of_two_branches_is_done_once() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(x @ w).sum() + F.gelu(x @ w).sum()

    with torch.no_grad():
        jitted = assert_jits(f, torch.randn(3, 4), torch.randn(4, 5))
    assert operations(jitted).count("matmul") == 1


def test_gradients_keep_their_order() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * x.exp() * x.exp()).sum()

    x = torch.randn(20, requires_grad=True)
    jitted = assert_jits(f, x)
    assert operations(jitted).count("exp") == 3
    f(x).backward()
    expected, x.grad = x.grad, None
    jitted(x).backward()
    assert torch.equal(x.grad, expected)


def returns_both(x: torch.Tensor) -> Any:
    return x + 1, x + 1


def writes_one(x: torch.Tensor) -> Any:
    a, b = x + 1, x + 1
    a.mul_(2)
    return a.sum(), b.sum()


def writes_between(x: torch.Tensor) -> Any:
    y = x * 1
    a = y.sum()
    y.add_(1)
    return a + y.sum()


def draws(x: torch.Tensor) -> Any:
    return torch.rand_like(x) - torch.rand_like(x)


def drops(x: torch.Tensor) -> Any:
    return F.dropout(x, 0.5, True) - F.dropout(x, 0.5, True)


def returns_views(x: torch.Tensor) -> Any:
    return (x + 1).view(-1), (x + 1).view(-1)


def signed_zeros(x: torch.Tensor) -> Any:
    return torch.copysign(x, 0.0) + torch.copysign(x, -0.0)


def types(x: torch.Tensor) -> Any:
    i = x.long()
    return (i + 1).sum() + (i + 1.0).sum() + (i + True).sum()


def returns_one_view_twice(x: torch.Tensor) -> Any:
    a, b = x.view(-1), x.view(-1)
    return a, b.contiguous()


def attends(x: torch.Tensor) -> Any:
    """PyTorch's attention checks ``query is key``, and rounds differently then."""
    y = torch.cat([x] * 4).double().reshape(2, 3, 4)
    weights = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(12, 4)
    bias = torch.zeros(12, dtype=torch.float64)
    a, b = y * 1.1, y * 1.1
    more = (weights, bias, None, None, False, 0.0, weights[:4], bias[:4], False)
    return F.multi_head_attention_forward(a, b, b, 4, 2, *more)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "f",
    [
        attends,
        returns_one_view_twice,
        returns_both,
        writes_one,
        writes_between,
        draws,
        drops,
        returns_views,
        signed_zeros,
        types,
    ],
)
def test_what_must_stay_two(f: Callable[..., Any]) -> None:
    with torch.no_grad():
        jitted = assert_jits(f, torch.randn(2, 3))
    # The result of `contiguous` is its argument here, and no call.
    kept = [c for c in tj.last_traces(jitted)[0].calls if c.symbol.path != "Tensor.contiguous"]
    assert len(tj.last_trace(jitted).calls) == len(kept)


def test_two_results_are_two_objects_in_two_memories() -> None:
    with torch.no_grad():
        jitted = assert_jits(returns_both, torch.randn(3))
        a, b = jitted(torch.zeros(3))
        a.add_(5)
    assert b.tolist() == [1, 1, 1]


def test_a_returned_result_may_be_written_before_the_backward_pass() -> None:
    """Autograd saves ``x * 2`` for the gradient of ``w``; the caller must not get that tensor."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return x * 2, w * (x * 2)

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    mine, out = tj.jit(f)(x, w)
    mine.add_(1)
    out.sum().backward()
    assert torch.equal(w.grad, x * 2)


def test_it_can_be_left_out() -> None:
    jitted = tj.jit(lambda x: (x.sin() * x.sin()).sum(), cse=False)
    jitted(torch.randn(3))
    assert operations(jitted).count("sin") == 2


def adds_to_several(x: torch.Tensor) -> Any:
    a, b = x * 2, x * 2
    torch._foreach_add_([a, b], [x, x])
    return a.sum(), b


def fills_several(x: torch.Tensor) -> Any:
    a, b = torch.empty(1, 3), torch.empty(1, 3)
    torch.split_copy(x, 1, out=(a, b))
    return a + b, b


@pytest.mark.parametrize("f", [adds_to_several, fills_several])
def test_what_one_call_writes_stays_two(f: Callable[..., Any]) -> None:
    session = tj.Session(["torch"], overrides={"torch": {"functional": "always"}})
    with torch.no_grad():
        assert_jits(f, torch.randn(2, 3), jit=lambda fn: tj.jit(fn, session=session))
