"""Backwards of users, and situations for their runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tj_suites.gradients.own_backwards import Program, X, function

# --------------------------------------------------------------------------- what capture knows
#
# PyTorch runs a backward when it is asked for; capture runs it with the forward. Where that shows,
# the call is left to PyTorch.

RATE = 3.0


settings = {"rate": 2.0}


rate = 2.0


def by_settings(ctx: Any, g: Any) -> Any:
    return g * settings["rate"]


def by_global(ctx: Any, g: Any) -> Any:
    return g * rate


def by_constant(ctx: Any, g: Any) -> Any:
    return g * RATE


def by_mode(ctx: Any, g: Any) -> Any:
    return g * (2 if torch.is_grad_enabled() else 3)


def switched_off(ctx: Any, g: Any) -> Any:
    with torch.no_grad():
        slope = ctx.saved_tensors[0].cos()
    return g * slope


class Tripled(torch.autograd.Function):
    """Triples, with a gradient of seven times the tangent."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 7


def by_function(ctx: Any, g: Any) -> Any:
    return Tripled.apply(g) * ctx.saved_tensors[0]  # type: ignore[no-untyped-call]


class OfClass(torch.autograd.Function):
    """Multiplies by a number of its class, in class methods (as entmax does)."""

    factor = 3

    @classmethod
    def scaled(cls, x: Any) -> Any:
        return x * cls.factor

    @classmethod
    def forward(cls, ctx: Any, x: Any, k: float) -> Any:
        ctx.k = k
        ctx.save_for_backward(x)
        return cls.scaled(x).sin() * k

    @classmethod
    def backward(cls, ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return cls.scaled(g) * cls.scaled(x).cos() * ctx.k, None


class OfDerivedClass(OfClass):
    """Multiplies by another number."""

    factor = 5


class NotMaterialized(torch.autograd.Function):
    """Says in ``setup_context`` that it takes None for a gradient that does not exist."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2, x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return (a if b is None else b) * 5
        return a + b


class AllMarked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        ctx.mark_non_differentiable(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class SomeMarked(AllMarked):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        ctx.mark_non_differentiable(y)
        return x * 3, y

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any) -> Any:  # type: ignore[override]
        return g


class Product(torch.autograd.Function):
    """A product of matrices; its backward has another, and tells the type of that."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        inner = x @ x
        return g.float() * inner * (2 if inner.dtype == torch.float32 else 5)


class TooFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, k: Any) -> Any:
        return x * k

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def keeps_argument(ctx: Any, x: Any) -> Any:
    ctx.x = x


def by_attribute(ctx: Any, g: Any) -> Any:
    return g * ctx.x


def saves_argument(ctx: Any, x: torch.Tensor) -> None:
    ctx.save_for_backward(x)


def plain(f: Program) -> Any:
    x = X.clone().requires_grad_()
    y = f(x)
    ys = y if isinstance(y, tuple) else (y,)
    tracked = [t for t in ys if t.requires_grad]
    each = [torch.autograd.grad((t**2).sum(), x, retain_graph=True) for t in tracked]
    return [t.detach() for t in ys], [t.requires_grad for t in ys], each


def second(f: Program) -> Any:
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad((f(x) ** 2).sum(), x, create_graph=True)
    return g.detach(), torch.autograd.grad((g**2).sum(), x)


def changed(f: Program) -> Any:
    """Backward after a change of the values that the backward may read."""
    global rate
    x = X.clone().requires_grad_()
    z = x * 1
    y = f(z)
    try:
        rate = settings["rate"] = 11.0
        with torch.no_grad():
            z.mul_(3)
        return torch.autograd.grad(y.sum(), x)
    finally:
        rate = settings["rate"] = 2.0


def transformed(f: Program) -> Any:
    return f(X)


def under_autocast(f: Program) -> Any:
    x = X.outer(X).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x)
    return y.detach(), torch.autograd.grad(y.float().sum(), x)


def wrong(f: Program) -> Any:
    y = f(X.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="incorrect number of gradients") as error:
        y.sum().backward()
    return str(error.value)


by_settings_ = function(saves_argument, by_settings)


by_global_ = function(saves_argument, by_global)


by_constant_ = function(saves_argument, by_constant)


by_mode_ = function(saves_argument, by_mode)


switched_off_ = function(saves_argument, switched_off)


by_function_ = function(saves_argument, by_function)


by_attribute_ = function(keeps_argument, by_attribute)

SITUATIONS: dict[str, tuple[Program, Program, bool]] = {
    "gradients are switched": (lambda x: switched_off_(x), second, False),
    "it asks whether gradients are on": (lambda x: by_mode_(x), plain, False),
    "it asks that of a second gradient": (lambda x: by_mode_(x), second, False),
    "a dictionary that changes": (lambda x: by_settings_(x), changed, False),
    "a variable that changes": (lambda x: by_global_(x), changed, False),
    "a constant": (lambda x: by_constant_(x), second, True),
    "it applies a Function": (lambda x: by_function_(x), second, False),
    "class methods": (
        lambda x: OfClass.apply(x, 2.0) + OfDerivedClass.apply(x, 3.0), plain, True  # type: ignore[no-untyped-call]
    ),
    "second gradients of class methods": (lambda x: OfDerivedClass.apply(x, 2.0), second, True),  # type: ignore[no-untyped-call]
    "missing gradients": (lambda x: NotMaterialized.apply(x), plain, False),  # type: ignore[no-untyped-call]
    "the only output is marked": (lambda x: AllMarked.apply(x), plain, False),  # type: ignore[no-untyped-call]
    "one output is marked": (lambda x: SomeMarked.apply(x), plain, True),  # type: ignore[no-untyped-call]
    "an argument on the context": (lambda x: by_attribute_(x), plain, True),
    "an argument on the context, written": (lambda x: by_attribute_(x), changed, True),
    "torch.func.grad": (
        lambda x: torch.func.grad(lambda x: by_setup.apply(x).sum())(x), transformed, False  # type: ignore[no-untyped-call]
    ),
    "the backward is out of autocast": (lambda x: Product.apply(x), under_autocast, True),  # type: ignore[no-untyped-call]
    "too few gradients": (lambda x: TooFew.apply(x, 2.0), wrong, False),  # type: ignore[no-untyped-call]
}  # fmt: skip


class by_setup(torch.autograd.Function):
    """Differentiable by `torch.func`, with another gradient than that of its computation."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 3
