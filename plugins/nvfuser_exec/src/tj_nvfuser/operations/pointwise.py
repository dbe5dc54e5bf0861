"""Elementwise operations."""

from __future__ import annotations

from typing import Any

from tj_nvfuser.definition import Value, dtype_of
from tj_nvfuser.operations.call import Call, Operation, Operations, Translate
from tj_nvfuser.refusal import refuse

__all__ = ["OPERATIONS", "WHOLE", "choose", "truth_of"]

INTEGERS = ("Int", "Int32")
WHOLE = (*INTEGERS, "Bool")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def same(name: str) -> Translate:
    """Operation on numbers that nvFuser has as ``name``; not on booleans."""

    def translate(call: Call, *args: Any) -> Value:
        # PyTorch has none, or raises, but for sums and products, which are logical there.
        refuse(call.compute == "Bool", "arithmetic of booleans")
        return call.pointwise(name, *args)

    return translate


def of_floats(name: str) -> Translate:
    """Operation whose result is a float."""

    def translate(call: Call, *args: Any) -> Value:
        refuse(call.compute in WHOLE, "its result is no float")
        return call.pointwise(name, *args)

    return translate


def rounds(name: str) -> Translate:
    """Rounding, which copies integers."""

    def translate(call: Call, x: Value) -> Value:
        refuse(call.compute == "Bool", "arithmetic of booleans")
        return (
            call.d.op("set", (x.dtype, x.shape), x) if x.dtype in WHOLE else call.pointwise(name, x)
        )

    return translate


def of_bits(name: str, logical: str) -> Translate:
    """Bitwise operation; on booleans, operation ``logical`` if there is one."""

    def translate(call: Call, *args: Any) -> Value:
        refuse(call.compute not in WHOLE, "bits of floats")
        return call.pointwise(logical if call.compute == "Bool" and logical else name, *args)

    return translate


def of_whole(name: str) -> Translate:
    """Operation on integers alone."""

    def translate(call: Call, *args: Any) -> Value:
        refuse(call.compute not in INTEGERS, "not of integers")
        return call.pointwise(name, *args)

    return translate


def asks(name: str) -> Translate:
    """Test of each element for NaN or infinity, such as ``isnan``."""

    def translate(call: Call, x: Value) -> Value:
        x = call.wide(x)
        if x.dtype in WHOLE:  # nothing whole is infinite or not a number
            return call.d.full(x.shape, name == "isfinite", "Bool")
        return call.pointwise(name, x, compute=x.dtype, result="Bool")

    return translate


def compares(name: str) -> Translate:
    """Comparison."""

    def translate(call: Call, a: Any, b: Any) -> Value:
        compute = call.promoted(a, b)
        if compute == "Bool":
            compute = "Int"
        return call.pointwise(name, a, b, compute=compute, result="Bool")

    return translate


def truth_of(call: Call, x: Value) -> Value:
    """``x`` as booleans."""
    if x.dtype == "Bool":
        return x
    return call.each("ne", x.shape, x, 0, compute=call.wide(x).dtype, result="Bool")


def logical(name: str) -> Translate:
    """Operation on truth values."""

    def translate(call: Call, *args: Value) -> Value:
        return call.pointwise(name, *(truth_of(call, x) for x in args), compute="Bool")

    return translate


def add(call: Call, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    if call.compute == "Bool":
        # PyTorch multiplies by ``bool(alpha)``, so that 0 leaves ``a``.
        refuse(alpha is not True and alpha != 1, "booleans, scaled")
        return call.pointwise("logical_or", a, b)
    return call.pointwise("add", a, scaled(call, b, alpha))


def subtract(call: Call, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    refuse(call.compute == "Bool", "arithmetic of booleans")
    return call.pointwise("sub", a, scaled(call, b, alpha))


def reversed_subtract(call: Call, a: Any, b: Any, alpha: Any = 1) -> Value:
    refuse(call.compute == "Bool", "arithmetic of booleans")
    return call.pointwise("sub", b, scaled(call, a, alpha))


def scaled(call: Call, x: Any, alpha: Any) -> Any:
    """``x * alpha``."""
    if isinstance(alpha, int | float) and alpha == 1:
        return x
    if isinstance(x, int | float) and isinstance(alpha, int | float):
        return x * alpha
    return call.pointwise("mul", x, alpha)


def multiply(call: Call, a: Any, b: Any) -> Value:
    return call.pointwise("logical_and" if call.compute == "Bool" else "mul", a, b)


def divide(call: Call, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        quotient: Value = of_floats("div")(call, a, b)
        return quotient
    if rounding_mode == "floor":
        return floor_divide(call, a, b)
    refuse(call.compute == "Bool", "arithmetic of booleans")
    # nvFuser divides integers as C++ does, which truncates.
    if call.compute in INTEGERS:
        return call.pointwise("div", a, b)
    return call.pointwise("trunc", call.pointwise("div", a, b))


def floor_divide(call: Call, a: Any, b: Any) -> Value:
    """Floor division of integers; PyTorch's correction for floats is not implemented."""
    refuse(call.compute not in INTEGERS, "not of integers")
    quotient = call.pointwise("div", a, b)
    rest = call.pointwise("sub", a, call.pointwise("mul", quotient, b))
    given = call.compute
    # C++ truncates; PyTorch's quotient is one less where something is left and signs differ. The
    # sign bit of ``a ^ b`` is set then.
    signs = call.pointwise(
        "lt", call.pointwise("bitwise_xor", a, b), 0, compute=given, result="Bool"
    )
    inexact = call.pointwise("ne", rest, 0, compute=given, result="Bool")
    both = call.pointwise("logical_and", signs, inexact, compute="Bool")
    return call.pointwise("sub", quotient, both)


def power(call: Call, a: Any, b: Any) -> Value:
    refuse(call.compute in WHOLE, "powers of what is whole")
    # As PyTorch's kernels of `pow` do.
    if isinstance(b, int | float) and b == 2:
        return call.pointwise("mul", a, a)
    return call.pointwise("pow", a, b)


def square(call: Call, x: Value) -> Value:
    return multiply(call, x, x)


def sign(call: Call, x: Value) -> Value:
    refuse(x.dtype == "Bool", "arithmetic of booleans")
    return call.pointwise("sign", x)


def clamp(call: Call, x: Value, min: Any = None, max: Any = None) -> Value:
    refuse(call.compute == "Bool", "arithmetic of booleans")
    # In this order: where ``min > max``, PyTorch's result is ``max``.
    for name, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            x = call.pointwise(name, x, bound)
    return x


def extreme(name: str, logical: str) -> Translate:
    def translate(call: Call, a: Value, b: Value) -> Value:
        return call.pointwise(logical if call.compute == "Bool" else name, a, b)

    return translate


def where(call: Call, condition: Value, a: Any, b: Any) -> Value:
    refuse(condition.dtype != "Bool", "a condition that is not boolean")
    return choose(call, condition, a, b)


def choose(call: Call, condition: Value, a: Any, b: Any) -> Value:
    """``a`` where ``condition``, else ``b``."""
    shape = call.out.shape
    given = [call.operand(x, shape, call.compute) for x in (a, b)]
    if not any(isinstance(x, Value) for x in given):
        given[0] = call.d.full(shape, a, call.compute)
    if call.compute == "Bool":  # beside True, nvFuser makes an integer of a boolean
        given = [x if isinstance(x, Value) else call.d.full(shape, x, "Bool") for x in given]
    return call.d.op("where", (call.compute, shape), call.d.broadcast(condition, shape), *given)


def masked_fill(call: Call, x: Value, mask: Value, value: Any) -> Value:
    refuse(mask.dtype != "Bool", "a mask that is not boolean")
    return choose(call, mask, value, x)


def lerp(call: Call, a: Value, b: Value, weight: Any) -> Value:
    """Interpolate with PyTorch's formulas: from ``a`` if ``|weight| < 0.5``, else from ``b``."""
    difference = call.pointwise("sub", b, a)
    low = call.pointwise("add", a, call.pointwise("mul", difference, weight))
    rest = call.pointwise("sub", 1.0, weight) if isinstance(weight, Value) else 1.0 - weight
    high = call.pointwise("sub", b, call.pointwise("mul", difference, rest))
    if not isinstance(weight, Value):
        return low if abs(weight) < 0.5 else high
    size = call.pointwise("abs", weight)
    near = call.pointwise("lt", size, 0.5, compute=call.compute, result="Bool")
    return choose(call, near, low, high)


def addcmul(call: Call, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    refuse(call.compute == "Bool", "arithmetic of booleans")
    return call.pointwise("add", x, call.pointwise("mul", scaled(call, a, value), b))


def addcdiv(call: Call, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    refuse(call.compute in WHOLE, "its result is no float")
    return call.pointwise("add", x, call.pointwise("div", scaled(call, a, value), b))


def cast(call: Call, x: Value, **_: Any) -> Value:
    """Copy; the caller casts every result to its data type."""
    return x if x.dtype != dtype_of(call.out) else copied(call, x)


def copied(call: Call, x: Value, **_: Any) -> Value:
    return call.d.op("set", (x.dtype, x.shape), x)


def logical_not(call: Call, x: Value) -> Value:
    return call.pointwise("logical_not", truth_of(call, x), compute="Bool")


def logical_xor(call: Call, a: Value, b: Value) -> Value:
    return call.pointwise("bitwise_xor", truth_of(call, a), truth_of(call, b), compute="Bool")


FLOATS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "erfinv",
    "exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt",
    "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
"""Functions whose results are floats, with the same name in ATen and nvFuser."""

COMPARISONS = ("eq", "ne", "ge", "gt", "le", "lt")

OPERATIONS: Operations = {
    **{f"aten.{name}.default": Operation(of_floats(name)) for name in FLOATS},
    **{
        f"aten.{name}.default": Operation(rounds(name))
        for name in ("ceil", "floor", "round", "trunc")
    },
    **{
        f"aten.{name}.default": Operation(asks(name))
        for name in ("isfinite", "isinf", "isnan", "isneginf", "isposinf")
    },
    **{
        f"aten.{name}.{kind}": Operation(compares(name))
        for name in COMPARISONS
        for kind in ("Tensor", "Scalar")
    },
    **{
        f"aten.bitwise_{name}.{kind}": Operation(of_bits(f"bitwise_{name}", logical_name))
        for name, logical_name in (("and", "logical_and"), ("or", "logical_or"), ("xor", ""))
        for kind in ("Tensor", "Scalar")
    },
    **{
        f"aten.{name}.{kind}": Operation(translate)
        for name, translate in (("add", add), ("sub", subtract), ("mul", multiply), ("div", divide))
        for kind in ("Tensor", "Scalar")
    },
    "aten.rsub.Tensor": Operation(reversed_subtract),
    "aten.rsub.Scalar": Operation(reversed_subtract),
    "aten.div.Tensor_mode": Operation(divide),
    "aten.div.Scalar_mode": Operation(divide),
    "aten.true_divide.Tensor": Operation(divide),
    "aten.floor_divide.default": Operation(floor_divide),
    "aten.fmod.Tensor": Operation(same("fmod")),
    "aten.fmod.Scalar": Operation(same("fmod")),
    "aten.remainder.Tensor": Operation(same("remainder")),
    "aten.remainder.Scalar": Operation(same("remainder")),
    "aten.atan2.default": Operation(of_floats("atan2")),
    "aten.pow.Tensor_Scalar": Operation(power),
    "aten.pow.Tensor_Tensor": Operation(power),
    "aten.pow.Scalar": Operation(power),
    "aten.square.default": Operation(square),
    "aten.abs.default": Operation(same("abs")),
    "aten.neg.default": Operation(same("neg")),
    "aten.sign.default": Operation(sign),
    "aten.sgn.default": Operation(sign),
    "aten.frac.default": Operation(of_floats("frac")),
    "aten.maximum.default": Operation(extreme("maximum", "logical_or")),
    "aten.minimum.default": Operation(extreme("minimum", "logical_and")),
    "aten.clamp.default": Operation(clamp),
    "aten.clamp.Tensor": Operation(clamp),
    "aten.clamp_min.default": Operation(lambda call, x, low: clamp(call, x, low)),
    "aten.clamp_max.default": Operation(lambda call, x, high: clamp(call, x, None, high)),
    "aten.bitwise_not.default": Operation(of_bits("bitwise_not", "logical_not")),
    "aten.bitwise_left_shift.Tensor": Operation(of_whole("bitwise_left_shift")),
    "aten.bitwise_right_shift.Tensor": Operation(of_whole("bitwise_right_shift")),
    "aten.gcd.default": Operation(of_whole("gcd")),
    "aten.logical_and.default": Operation(logical("logical_and")),
    "aten.logical_or.default": Operation(logical("logical_or")),
    "aten.logical_not.default": Operation(logical_not),
    "aten.logical_xor.default": Operation(logical_xor),
    "aten.where.self": Operation(where),
    "aten.where.Scalar": Operation(where),
    "aten.where.ScalarSelf": Operation(where),
    "aten.where.ScalarOther": Operation(where),
    "aten.masked_fill.Scalar": Operation(masked_fill),
    "aten.masked_fill.Tensor": Operation(masked_fill),
    "aten.lerp.Scalar": Operation(lerp),
    "aten.lerp.Tensor": Operation(lerp),
    "aten.addcmul.default": Operation(addcmul),
    "aten.addcdiv.default": Operation(addcdiv),
    "aten._to_copy.default": Operation(cast, dtypes=FLOAT8),
    "aten.clone.default": Operation(copied, computes=False),
}
"""Elementwise operations, by the names of their symbols."""
