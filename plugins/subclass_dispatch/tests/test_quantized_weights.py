"""Quantised weights that are trained: a Function whose backward returns a plain gradient."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.checkpoint import checkpoint

aten = torch.ops.aten


class Product(torch.autograd.Function):
    """A product with a quantised matrix; the gradient of that is dense."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, b: Any = None) -> Any:
        ctx.save_for_backward(x, w)
        ctx.bias = b is not None
        out = (x @ w.data8.t().to(x.dtype)) * w.scale
        return out if b is None else out + b

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        bias = g.sum(0) if ctx.bias else None
        return (g * w.scale) @ w.data8.to(g.dtype), g.t() @ x, bias


class Quantized(torch.Tensor):
    """A matrix of int8 with a scale per row."""

    data8: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def __new__(cls: Any, data8: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data8.shape, dtype=scale.dtype)

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def __init__(self, data8: torch.Tensor, scale: torch.Tensor) -> None:
        self.data8, self.scale = data8, scale

    @classmethod
    def of(cls, w: torch.Tensor) -> Any:
        scale = w.abs().amax(1) / 127
        return cls((w / scale[:, None]).round().to(torch.int8), scale)

    def whole(self) -> torch.Tensor:
        return self.data8.to(self.scale.dtype) * self.scale[:, None]

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data8", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["data8"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return Product.apply(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.clone.default, aten._to_copy.default):
            now = kwargs.get("dtype") or args[0].scale.dtype
            same = cls(func(args[0].data8), func(args[0].scale).to(now))
            return return_and_correct_aliasing(func, args, kwargs, same)
        if func is aten.copy_.default:
            new = args[1] if isinstance(args[1], cls) else cls.of(args[1])
            args[0].data8.copy_(new.data8)
            args[0].scale.copy_(new.scale)
            return args[0]
        plain = pytree.tree_map_only(cls, lambda t: t.whole(), (args, kwargs))
        result = func(*plain[0], **plain[1])
        if func._schema.is_mutable and isinstance(args[0], cls):
            return args[0].copy_(plain[0][0])
        return result


def converted(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(Quantized.of(part.weight.detach()))
    return module


class Tied(nn.Module):
    """Uses a weight twice, and once as a result of an operator: plain gradients are added."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(Quantized.of(torch.linspace(-1, 1, 16).reshape(4, 4)))

    def forward(self, x: Any) -> Any:
        return F.linear(F.linear(x, self.weight).relu(), self.weight) + x @ self.weight


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


NETWORKS = {
    "converted": lambda: converted(mlp()),
    "in a checkpoint": lambda: Checkpointed(converted(mlp())),
    "tied": Tied,
    "tied, in a checkpoint": lambda: Checkpointed(Tied()),
}


def trained(name: str, jit: Any, later: bool = False, dynamic: Any = None) -> Any:
    """Losses and gradients of three steps; ``later``: the network is converted after a call."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = mlp() if later else NETWORKS[name]()
    program = net if jit is None else jit(net, dynamic=dynamic)
    if later:
        program(torch.randn(5, 4)).sum().backward()
        net.zero_grad()
        converted(program)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    found: list[Any] = []
    for rows in (5, 5, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        loss = program(x).square().mean()
        loss.backward()
        found += [loss.detach(), x.grad, *[(type(p.grad), p.grad) for p in net.parameters()]]
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return [*found, program.eval()(torch.ones(2, 4))]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", NETWORKS)
def test_three_steps(jit: Any, alike: Any, name: str, dynamic: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            alike(trained(name, jit, dynamic=dynamic), trained(name, None))


@pytest.mark.slow
def test_a_network_that_is_converted_after_a_call(jit: Any, alike: Any) -> None:
    alike(trained("", jit, later=True), trained("", None, later=True))


CONVERSIONS = {
    "double": lambda m: m.double(),
    "to a data type": lambda m: m.to(torch.bfloat16),
    "to a device": lambda m: m.to("cpu"),
    "there and back": lambda m: m.double().float(),
}


class Products(nn.Module):
    """Two products with a weight: whole operators, before and after a graph break."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(Quantized.of(torch.linspace(-1, 1, 16).reshape(4, 4)))
        self.breaks = breaks

    def forward(self, x: Any) -> Any:
        y = x @ self.weight
        if self.breaks:
            torch._dynamo.graph_break()
        return y.sin() @ self.weight


@pytest.mark.sampled(10)
@pytest.mark.parametrize("breaks", [False, True], ids=["", "graph_break"])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_jitted_module_is_converted(jit: Any, alike: Any, name: str, breaks: bool) -> None:
    def run(wrap: Any) -> Any:
        torch._dynamo.reset()
        module = wrap(Products(breaks))
        found = []
        for _ in range(2):
            x = torch.linspace(-1, 1, 8).reshape(2, 4).to(module.weight.dtype)
            y = module(x)
            y.sum().backward()
            found += [y.detach(), module.weight.grad, type(module.weight), module.weight.dtype]
            module.zero_grad()
            del y
            assert CONVERSIONS[name](module) is module
        return found

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="tj: .*graph break|.*non-leaf")
        alike(run(jit), run(lambda m: m))
