"""Backwards that several tangents go through at once, of programs whose regions are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import functional, gradcheck

pytestmark = pytest.mark.sampled(3)

Program = Callable[[torch.Tensor], torch.Tensor]


def normed(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:]).tanh() * 2


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.mul_(x)
    return y.sigmoid() + x.sum()


def at_once(f: Program, x: torch.Tensor) -> Any:
    y = f(x)
    tangents = torch.stack([y.detach().cos() * n for n in range(1, 4)])
    return torch.autograd.grad(y, x, tangents, is_grads_batched=True)


def jacobian(f: Program, x: torch.Tensor) -> Any:
    return functional.jacobian(f, x, vectorize=True)


def mapped(f: Program, x: torch.Tensor) -> Any:
    y = f(x)
    tangents = torch.stack([y.detach().cos() * n for n in range(1, 4)])
    return torch.vmap(lambda t: torch.autograd.grad(y, x, t, retain_graph=True)[0])(tangents)


@pytest.mark.parametrize("way", [at_once, jacobian, mapped], ids=lambda way: way.__name__)
@pytest.mark.parametrize("f", [normed, written], ids=lambda f: f.__name__)
def test_several_tangents_at_once(f: Program, way: Callable[..., Any], fusing: Any) -> None:
    x = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(way(fusing(f), x), way(f, x))


@pytest.mark.parametrize("f", [normed, written], ids=lambda f: f.__name__)
def test_batches_are_as_one_by_one(f: Program, fusing: Any) -> None:
    x = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(fusing(f), (x,), check_batched_grad=True)
