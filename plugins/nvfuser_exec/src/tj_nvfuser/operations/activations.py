"""Activations and their gradients, composed of elementwise operations with PyTorch's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_nvfuser.operations.call import Call, Operation, Operations, Translate
from tj_nvfuser.operations.pointwise import choose
from tj_nvfuser.refusal import refuse

if TYPE_CHECKING:
    from tj_nvfuser.definition import Value

__all__ = ["OPERATIONS"]

INVERSE_ROOT_2 = math.sqrt(0.5)
ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715


class Formula:
    """Elementwise operations on a call, as methods by nvFuser's name."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __getattr__(self, name: str) -> Callable[..., Value]:
        return lambda *args: self.call.pointwise(name, *args)

    def test(self, name: str, a: Any, b: Any) -> Value:
        """Compare ``a`` and ``b``."""
        return self.call.pointwise(name, a, b, compute=self.call.compute, result="Bool")

    def choose(self, condition: Value, a: Any, b: Any) -> Value:
        """``a`` where ``condition``, else ``b``."""
        return choose(self.call, condition, a, b)


def formula(function: Callable[..., Value]) -> Translate:
    """Make a translation from a function of a `Formula` and the arguments; results are floats."""

    def translate(call: Call, *args: Any, **kwargs: Any) -> Value:
        refuse(call.compute not in ("Float", "Double"), "its result is no float")
        return function(Formula(call), *args, **kwargs)

    return translate


def relu(call: Call, x: Value) -> Value:
    # PyTorch raises ("Boolean inputs not supported for relu").
    refuse(call.compute == "Bool", "arithmetic of booleans")
    return call.pointwise("relu", x)


def silu(f: Formula, x: Value) -> Value:
    return f.mul(x, f.sigmoid(x))


def silu_backward(f: Formula, g: Value, x: Value) -> Value:
    s = f.sigmoid(x)
    return f.mul(f.mul(g, s), f.add(f.mul(x, f.sub(1.0, s)), 1.0))


def gelu(f: Formula, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return f.mul(f.mul(x, 0.5), f.add(f.tanh(inner(f, x)), 1.0))
    return f.mul(f.mul(x, 0.5), f.add(f.erf(f.mul(x, INVERSE_ROOT_2)), 1.0))


def inner(f: Formula, x: Value) -> Value:
    """The argument of tanh in gelu's approximation: ``sqrt(2 / pi) (x + 0.044715 x^3)``."""
    cube = f.mul(f.mul(x, x), x)
    return f.mul(f.add(x, f.mul(cube, CUBIC)), ROOT_2_OVER_PI)


def gelu_backward(f: Formula, g: Value, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        t = f.tanh(inner(f, x))
        steep = f.mul(f.add(f.mul(f.mul(x, x), 3 * CUBIC), 1.0), ROOT_2_OVER_PI)
        left = f.mul(f.add(t, 1.0), 0.5)
        right = f.mul(f.mul(f.mul(x, 0.5), f.sub(1.0, f.mul(t, t))), steep)
        return f.mul(g, f.add(left, right))
    cumulative = f.mul(f.add(f.erf(f.mul(x, INVERSE_ROOT_2)), 1.0), 0.5)
    bell = f.mul(f.exp(f.mul(f.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return f.mul(g, f.add(cumulative, f.mul(x, bell)))


def tanh_backward(f: Formula, g: Value, y: Value) -> Value:
    return f.mul(g, f.sub(1.0, f.mul(y, y)))


def sigmoid_backward(f: Formula, g: Value, y: Value) -> Value:
    return f.mul(f.mul(g, f.sub(1.0, y)), y)


def threshold(f: Formula, x: Value, limit: Any, value: Any) -> Value:
    # ``<=``, and not the other way round with ``>``: NaN is kept, as in PyTorch.
    return f.choose(f.test("le", x, limit), value, x)


def threshold_backward(f: Formula, g: Value, x: Value, limit: Any) -> Value:
    return f.choose(f.test("le", x, limit), 0.0, g)


def leaky_relu(f: Formula, x: Value, slope: Any = 0.01) -> Value:
    return f.choose(f.test("gt", x, 0.0), x, f.mul(x, slope))


# The last argument is true if ``x`` is the result, whose sign is the input's: PyTorch takes no
# negative slope then.
def leaky_relu_backward(f: Formula, g: Value, x: Value, slope: Any, _: bool) -> Value:
    return f.choose(f.test("gt", x, 0.0), g, f.mul(g, slope))


def hardtanh(f: Formula, x: Value, low: Any = -1.0, high: Any = 1.0) -> Value:
    return f.minimum(f.maximum(x, low), high)


def hardtanh_backward(f: Formula, g: Value, x: Value, low: Any, high: Any) -> Value:
    # PyTorch's gradient is 0 at the limits, too.
    outside = f.call.pointwise(
        "logical_or", f.test("le", x, low), f.test("ge", x, high), compute="Bool"
    )
    return f.choose(outside, 0.0, g)


def hardsigmoid(f: Formula, x: Value) -> Value:
    return f.div(f.minimum(f.maximum(f.add(x, 3.0), 0.0), 6.0), 6.0)


def hardswish(f: Formula, x: Value) -> Value:
    return f.div(f.mul(x, f.minimum(f.maximum(f.add(x, 3.0), 0.0), 6.0)), 6.0)


def softplus(f: Formula, x: Value, beta: Any = 1, limit: Any = 20) -> Value:
    z = f.mul(x, beta)
    # Beyond the limit PyTorch is linear, before `exp` overflows.
    return f.choose(f.test("gt", z, limit), x, f.div(f.log1p(f.exp(z)), beta))


def softplus_backward(f: Formula, g: Value, x: Value, beta: Any, limit: Any) -> Value:
    z = f.mul(x, beta)
    return f.choose(f.test("gt", z, limit), g, f.mul(g, f.sigmoid(z)))


def elu(f: Formula, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    bent = f.mul(f.expm1(f.mul(x, input_scale)), alpha * scale)
    return f.choose(f.test("gt", x, 0.0), f.mul(x, scale), bent)


def mse_loss(f: Formula, a: Value, b: Value, reduction: int = 1) -> Value:
    # 0, 1 and 2 are none, mean and sum, as in `torch.nn._reduction`.
    refuse(reduction != 0, "a loss that is reduced")
    difference = f.sub(a, b)
    return f.mul(difference, difference)


def native_dropout_backward(f: Formula, g: Value, mask: Value, scale: Any) -> Value:
    return f.mul(f.mul(g, mask), scale)


FORMULAS: dict[str, Callable[..., Value]] = {
    "silu": silu,
    "silu_backward": silu_backward,
    "gelu": gelu,
    "gelu_backward": gelu_backward,
    "tanh_backward": tanh_backward,
    "sigmoid_backward": sigmoid_backward,
    "threshold": threshold,
    "threshold_backward": threshold_backward,
    "leaky_relu": leaky_relu,
    "leaky_relu_backward": leaky_relu_backward,
    "hardtanh": hardtanh,
    "hardtanh_backward": hardtanh_backward,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "softplus": softplus,
    "softplus_backward": softplus_backward,
    "elu": elu,
    "mse_loss": mse_loss,
    "native_dropout_backward": native_dropout_backward,
}

OPERATIONS: Operations = {
    "aten.relu.default": Operation(relu),
    **{f"aten.{name}.default": Operation(formula(f)) for name, f in FORMULAS.items()},
}
"""Activations, by the names of their symbols."""
