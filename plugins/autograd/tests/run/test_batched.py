"""Backwards that several tangents go through at once, by the vmaps of autograd and of torch.func.

A tangent that stands for a batch goes to PyTorch's autograd, and the program runs once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch.autograd import functional, gradcheck, gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.sampled(4)

Program = Callable[[torch.Tensor], torch.Tensor]


class Cubed(torch.autograd.Function):
    """A Function whose backward is the user's, differentiable itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * tangents[0] * x * x


def written(x: torch.Tensor) -> torch.Tensor:
    """Write in place, and to a part."""
    y = x.clone()
    y.mul_(x)
    y[0] = x[1] * x[2]
    return y.cumsum(0)


def statistics(x: torch.Tensor) -> torch.Tensor:
    """Normalize by statistics that the call writes."""
    mean, variance = torch.zeros(3, dtype=x.dtype), torch.ones(3, dtype=x.dtype)
    return F.batch_norm(x, mean, variance, training=True)


def attention(x: torch.Tensor) -> torch.Tensor:
    """Attend by products: the kernels for attention have no second derivatives."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*[x[None, None]] * 3)


PROGRAMS: dict[str, Program] = {
    "pointwise": lambda x: (x.sin() * 2).exp(),
    "written": written,
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]).tanh(),
    "product": lambda x: (x @ x.t()).relu() + x.sum(),
    "Function": lambda x: Cubed.apply(x) + 1,
    "checkpoint": lambda x: checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False),
    "views": lambda x: torch.where(x > 0, x, x * x).t().contiguous().view(-1).split(3)[0] * 2,
    "indices": lambda x: x.softmax(-1).gather(1, torch.zeros(4, 1, dtype=torch.long)),
    "attention": attention,
    "random": lambda x: F.dropout(x, 0.5) * x,
    "statistics": statistics,
}


def inputs(f: Program, *, graph: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An argument, the result, and three tangents of it."""
    torch.manual_seed(0)
    x = (torch.rand(4, 3, dtype=torch.float64) - 0.3).requires_grad_()
    y = f(x)
    return x, y, torch.rand(3, *y.shape, dtype=y.dtype, requires_grad=graph)


def at_once(f: Program) -> Any:
    x, y, tangents = inputs(f)
    found = torch.autograd.grad(y, x, tangents, is_grads_batched=True, retain_graph=True)
    return *found, *torch.autograd.grad(y, x, tangents[0])


def differentiable(f: Program) -> Any:
    x, y, tangents = inputs(f, graph=True)
    (found,) = torch.autograd.grad(y, x, tangents, is_grads_batched=True, create_graph=True)
    return found, *torch.autograd.grad(found.sin().sum(), [x, tangents], allow_unused=True)


def second(f: Program) -> Any:
    x, y, tangents = inputs(f, graph=True)
    (first,) = torch.autograd.grad(y, x, tangents[0], create_graph=True)
    again = torch.rand(3, *first.shape, dtype=first.dtype)
    more = {"is_grads_batched": True, "allow_unused": True}
    return torch.autograd.grad(first, [x, tangents], again, **more)


def mapped(f: Program) -> Any:
    x, y, tangents = inputs(f)
    return torch.vmap(lambda t: torch.autograd.grad(y, x, t, retain_graph=True)[0])(tangents)


def jacobians(f: Program) -> Any:
    x, _, _ = inputs(f)
    found = functional.jacobian(f, x, vectorize=True, create_graph=True)
    return found, *torch.autograd.grad(found.sum(), x, allow_unused=True)


def hessian(f: Program) -> Any:
    x, _, _ = inputs(f)
    return functional.hessian(lambda x: f(x).sum(), x, vectorize=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbols"])
@pytest.mark.parametrize(
    "way",
    [at_once, differentiable, second, mapped, jacobians, hessian],
    ids=lambda way: way.__name__,
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_several_tangents_at_once(name: str, way: Callable[[Program], Any], dynamic: bool) -> None:
    f = PROGRAMS[name]
    got, expected = way(tj.jit(f, dynamic=dynamic)), way(f)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"random"}))
def test_batches_are_as_one_by_one(name: str, check: Callable[..., bool]) -> None:
    x = (torch.rand(4, 3, dtype=torch.float64) + 0.1).requires_grad_()
    assert check(tj.jit(PROGRAMS[name]), (x,), check_batched_grad=True)
