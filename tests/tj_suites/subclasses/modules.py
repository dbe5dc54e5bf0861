"""Subclasses in programs: modules, containers, checkpoints, Functions, and contexts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from tj_suites.subclasses.calls import CASES, given, leaf, one, two
from tj_suites.subclasses.kinds import Counted, Labeled, Packed, Scaled

__all__ = ["CASES"]


def _wrapped(module: nn.Module, kind: Any) -> Any:
    """``module`` with parameters of a subclass."""
    for part in module.modules():
        for name, p in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(kind(p.detach()), p.requires_grad))
    return module


def _two(p: torch.Tensor) -> Any:
    return TwoTensor(p, p * 0.5)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))


@CASES.made()
def parameters() -> Any:
    return _wrapped(_mlp(), _two), (torch.randn(3, 4),)


@CASES.made()
def parameters_and_subclass_input() -> Any:
    return _wrapped(_mlp(), _two), (two(3, 4)(),)


@CASES.made()
def subclass_input_of_plain_module() -> Any:
    return _mlp(), (two(3, 4, grad=True)(),)


@CASES.made()
def some_parameters() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    _wrapped(net[0], _two)
    return net, (torch.randn(3, 4),)


@CASES.made()
def parameters_with_context() -> Any:
    return _wrapped(nn.Linear(4, 4), lambda p: Labeled(p, "w")), (torch.randn(3, 4),)


@CASES.made()
def parameters_without_derivative() -> Any:
    return _wrapped(nn.Linear(4, 4, bias=False), Packed), (one(Packed, 3, 4)(),)


@CASES.made()
def tied_parameters() -> Any:
    net = _wrapped(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), _two)
    net[1].weight = net[0].weight
    return net, (torch.randn(3, 4),)


@CASES.made()
def quantized_module() -> Any:
    net: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    for part in (net[0], net[2]):
        part.weight = nn.Parameter(Scaled.of(part.weight.detach()), requires_grad=False)
    return net, (torch.randn(3, 4, requires_grad=True),)


class WithBuffer(nn.Module):
    """Counts its calls in a buffer that is a subclass."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", TwoTensor(torch.zeros(2), torch.ones(2)))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen.add_(1)
        return x * self.seen


@CASES.made()
def buffer_is_written() -> Any:
    return WithBuffer(), (torch.randn(3, 2, requires_grad=True),)


# ------------------------------------------------------------------------------- containers


@CASES.made()
def in_a_list_and_a_dict() -> Any:
    def f(x: Any, more: Any) -> Any:
        return {"sum": x[0] + more["y"], "all": [x[1] * 2, (more["y"], 3)]}

    return f, ([two(3)(), two(3)()], {"y": two(3, grad=True)()})


@CASES.made()
def twice_the_same() -> Any:
    x = two(3, grad=True)()
    return (lambda a, b: a * b), (x, x)


@CASES.made()
def two_views_of_one() -> Any:
    x = two(4)()

    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b

    return f, (x.view(2, 2), x.view(4)[:2])


@CASES.made()
def two_that_hold_the_same() -> Any:
    a = torch.randn(3)

    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return x + y

    return f, (TwoTensor(a, torch.randn(3)), TwoTensor(torch.randn(3), a))


@CASES.made()
def a_subclass_and_what_it_holds() -> Any:
    x: Any = two(3)()

    def f(x: Any, inner: Any) -> Any:
        inner.mul_(2)
        return x + 1

    return f, (x, x.a)


@CASES.made()
def closed_over() -> Any:
    w = two(3)()
    return (lambda x: x * w), (torch.randn(3, requires_grad=True),)


# ------------------------------------------------------------------------------- higher order


@CASES(two(4, 4, grad=True), leaf(4, 4))
def checkpointed(x: Any, w: Any) -> Any:
    return checkpoint(lambda a, b: (a @ b).sin(), x, w, use_reentrant=False) * 2


class Triple(torch.autograd.Function):
    """Multiplies by three, with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 + x * 0


@CASES(two(4, grad=True))
def function_of_a_subclass(x: Any) -> Any:
    return Triple.apply(x).sin()


@torch._dynamo.allow_in_graph
class Product(torch.autograd.Function):
    """A product of plain matrices, computed by a subclass forward and backward, as in float8."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        product: Any = Labeled(x * 2, "x") @ Labeled(w * 2, "w")
        return product.held

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        wrapped: Any = Labeled(g * 2, "g")
        return (wrapped @ Labeled(w * 2, "w").t()).held, (Labeled(x * 2, "x").t() @ wrapped).held


@CASES(leaf(3, 4), leaf(4, 5))
def function_with_a_subclass_inside(x: Any, w: Any) -> Any:
    return Product.apply(x.sin(), w) + 1


@CASES(leaf(4))
def function_around_a_subclass(x: Any) -> Any:
    y = Triple.apply(x)
    return TwoTensor(y, y * 2) + 1


@CASES(two(4, 4, grad=True))
def under_autocast(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


@CASES(two(4, 4))
def a_loop(x: Any) -> Any:
    for i in range(x.shape[0]):
        x = x + i * x[i]
    return x


@CASES(two(4, 4, grad=True), given(4, 4))
def helper_functions(x: Any, y: Any) -> Any:
    def helper(a: Any, *, scale: float) -> Any:
        return a * scale if type(a) is TwoTensor else a

    return helper(x, scale=2.0) + helper(y, scale=3.0)


@CASES(two(4, grad=True))
def squared_in_an_exponent(x: Any) -> Any:
    return x * (x * x).exp()


@CASES(one(Counted, 3, grad=True), leaf(3))
def mixed_gradients(x: Any, w: Any) -> Any:
    return x * w + w


@CASES(two(4, 6))
def split_and_joined(x: Any) -> Any:
    a, b, c = x.split(2, 1)
    return torch.cat([c, a, b], 1), torch.stack([a, b])


@CASES(two(4))
def random_numbers(x: Any) -> Any:
    return torch.nn.functional.dropout(x, 0.5), torch.rand_like(x)


@CASES(two(2, 3, 4, 4, grad=True), leaf(5, 3, 3, 3))
def convolution(x: Any, w: Any) -> Any:
    return torch.nn.functional.conv2d(x, w, padding=1)


@CASES(two(2, 4, 8, 8, grad=True))
def attention(q: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, q, q)
