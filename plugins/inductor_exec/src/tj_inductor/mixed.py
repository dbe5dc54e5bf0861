"""Decompositions for values of mixed data types, where Inductor's own convert in another way."""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from typing import Any

import torch

from tj_inductor.arithmetic import BY_NUMBERS, HALVES, INTEGERS, Formula, widened

__all__ = [
    "AT_PLACES",
    "CONVERSIONS",
    "ENDS",
    "FACTORS",
    "IN_PARTS",
    "MULTIPLES",
    "OF_SMALL",
    "PROMOTED",
    "WITH_HALVES",
    "converted",
    "in_common_type",
    "in_float",
]


def converted(x: torch.Tensor, *, dtype: torch.dtype | None = None, **more: Any) -> Any:
    """A copy in another data type: floats that an integer does not hold become what PyTorch's
    kernels make of it.

    These convert to an int32, or to an int64 for the types `BY_INT64`, whose smallest number stands
    for all that is out of range, and keep the lowest bits of it. Inductor's vectors have the
    largest or the smallest number of a byte, and C++ compilers any number where a branch of the
    kernel is known to have a NaN or an infinity. A half becomes a float32 first.
    """
    # Other devices convert in other ways.
    elsewhere = x.device.type != "cpu" or more.get("device") not in (None, x.device)
    if elsewhere or dtype is None or dtype not in INTEGERS or not x.is_floating_point():
        return NotImplemented
    wide = widened(x)
    by = torch.int64 if dtype in BY_INT64 else torch.int32
    end = -float(torch.iinfo(by).min)
    made = torch.where(wide.abs() < end, wide, -end)
    return torch.ops.prims.convert_element_type(made, by).to(dtype)


BYTES = (torch.int8, torch.uint8)
"""Integers of which Inductor loads parts of vectors, and reduces whole ones."""

SHORT = (*BYTES, torch.bool)
"""Data types of one byte."""

BY_INT64 = (torch.uint8, torch.int64)
"""Integers that floats become by way of an int64."""


def copied_to(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    """``source`` in the data type of ``x``; see `converted`."""
    found = converted(source, dtype=x.dtype)
    return found if found is NotImplemented else aten.copy.default(x, found, non_blocking)


def in_common_type(formula: Formula) -> Formula:
    """Round integer operands of ``formula(a, b)`` to the half that the result is.

    The formula computes in float32, and would convert integers to that: these may have more digits
    than a half, or be larger.
    """

    def changed(a: Any, b: Any) -> Any:
        common = torch.result_type(a, b)
        if common not in HALVES:
            return formula(a, b)
        return formula(*(v.to(common) if isinstance(v, torch.Tensor) else v for v in (a, b)))

    return changed


def with_half(operator: Any) -> Formula:
    """Let ``operator`` round numbers, ``alpha`` too, to the half that its result is.

    So do kernels for CPUs. A difference of a half and a number may be all rounding.
    """

    def changed(*args: Any, **more: Any) -> Any:
        kinds = {(v.dtype, v.device.type) for v in args if isinstance(v, torch.Tensor)}
        if kinds not in ON_CPU:
            return NotImplemented
        ((half, _),) = kinds
        given = [*args, *more.values()]
        numbers = [as_half(v, half) if isinstance(v, float) else v for v in given]
        # Equal numbers end the recursion: the operator in here has this formula, too.
        if all(new is v or new == v or new != new for new, v in zip(numbers, given, strict=True)):
            return NotImplemented
        rest = zip(more, numbers[len(args) :], strict=True)
        return operator(*numbers[: len(args)], **dict(rest))

    return changed


def with_factor(operator: Any) -> Formula:
    """Let ``operator(x, y, alpha=)`` be ``operator(x, y * alpha)``, rounded once.

    Inductor makes an `addmm` of the sum of a product and a matrix, and loses ``alpha`` (a pattern
    in torch/_inductor/fx_passes/post_grad.py of 2.13 and 2.14).
    """
    rounded = with_half(operator)

    def changed(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        made = rounded(x, y, alpha=alpha)
        if made is not NotImplemented or (isinstance(alpha, int | float) and alpha == 1):
            return made
        common = torch.result_type(x, y)
        wide = torch.float32 if common in HALVES else common
        # An integer is rounded first: it may have more digits than a half, or be larger.
        given = (v.to(common) if isinstance(v, torch.Tensor) else v for v in (x, y))
        first, second = (v.to(wide) if isinstance(v, torch.Tensor) else v for v in given)
        return operator(first, second * alpha).to(common)

    return changed


ON_CPU = tuple({(half, "cpu")} for half in HALVES)
"""Data type and device of arguments that are halves on a CPU."""


def as_half(number: float, dtype: torch.dtype) -> float:
    """``number`` as an element of a half, by way of a float32, as in PyTorch.

    Not by a tensor: while a region is traced, tensors have no elements to read.
    """
    single = ctypes.c_float(number).value
    if not math.isfinite(single):
        return single
    if dtype is torch.float16:
        try:
            found: float = struct.unpack("<e", struct.pack("<e", single))[0]
        except OverflowError:
            return math.copysign(math.inf, single)
        return found
    (bits,) = struct.unpack("<I", struct.pack("<f", single))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # to the nearest, ties to even
    found = struct.unpack("<f", struct.pack("<I", bits))[0]
    return found


def in_float(formula: Formula) -> Formula:
    """Compute ``formula`` of halves in float32: its parts would be rounded one by one."""

    def changed(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        if x.dtype not in HALVES:
            return formula(x, *args, **more)
        wide = (v.float() if isinstance(v, torch.Tensor) else v for v in (x, *args))
        return formula(*wide, **more).to(x.dtype)

    return changed


def clamped_below(x: torch.Tensor, end: Any) -> Any:
    """`clamp_min` to 0, which leaves a zero as it is; Inductor's result has the sign of ``end``."""
    return _clamped(torch.lt, x, end)


def clamped_above(x: torch.Tensor, end: Any) -> Any:
    """`clamp_max`; see `clamped_below`."""
    return _clamped(torch.gt, x, end)


def _clamped(outside: Formula, x: torch.Tensor, end: Any) -> Any:
    dtype = torch.result_type(x, end)
    if end != 0 or not dtype.is_floating_point:
        return NotImplemented
    x = x.to(dtype)
    return torch.where(outside(x, end), float(end), x)


def sum_of_product(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: Any = 1) -> Any:
    """`addcmul` of floats with a factor, which is the first one: another product may overflow."""
    return _with_factor(torch.mul, x, a, b, value)


def sum_of_quotient(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: Any = 1) -> Any:
    """`addcdiv`; see `sum_of_product`."""
    return _with_factor(torch.div, x, a, b, value)


def _with_factor(
    combined: Formula, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, value: Any
) -> Any:
    dtype = functools.reduce(torch.promote_types, (x.dtype, a.dtype, b.dtype))
    whole = (torch.result_type(x, a), torch.result_type(a, b), torch.result_type(x, b))
    if value == 1 or set(whole) != {dtype} or dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return x + combined(a * value, b)


def ends_of_small(operator: Any) -> Formula:
    """Let ``operator``, which finds smallest or largest elements, look at an int32 each of `SHORT`,
    or at a float32 each of halves.

    Inductor reduces a whole vector of bytes where it has loaded a part of one, and finds another
    place for the smallest of bools. Its kernel with several threads that finds ends of halves along
    two dimensions does not compile.
    """

    def changed(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        if x.dtype not in (*SHORT, *HALVES):
            return NotImplemented
        wide = torch.float32 if x.dtype in HALVES else torch.int32
        found = operator(x.to(wide), *args, **more)
        values, *indices = found if isinstance(found, tuple) else (found,)
        values = values.to(x.dtype) if values.dtype is wide else values
        return (values, *indices) if indices else values

    return changed


def sums_of_bytes(operator: Any) -> Formula:
    """Let ``operator``, a sum or product of `SHORT`, add or multiply an int32 each.

    See `ends_of_small`. The lowest bits of the result are those of a sum of bytes, and a sum of
    bools is true unless it is 0. Inductor's kernels of these do not compile.
    """

    def changed(x: torch.Tensor, *args: Any, dtype: torch.dtype | None = None, **more: Any) -> Any:
        if dtype not in SHORT:
            return NotImplemented
        whole = x.to(dtype).to(torch.int32)
        return operator(whole, *args, dtype=torch.int32, **more).to(dtype)

    return changed


def sums_at_places(operator: Any) -> Formula:
    """Let ``operator`` add halves at places of a tensor in float32, and round each sum once.

    Inductor rounds after each term: a sum of ones in bfloat16 ends at 256.
    """

    def changed(
        x: torch.Tensor, dim: int, index: torch.Tensor, source: Any, *args: Any, **more: Any
    ) -> Any:
        reduction = more.get("reduce", args[0] if args else "sum")
        if x.dtype not in HALVES or reduction not in ("sum", "add"):
            return NotImplemented
        if not isinstance(source, torch.Tensor):  # which the kernel rounds first
            source = torch.full(index.shape, source, dtype=x.dtype, device=x.device)
            return torch.scatter_add(x.float(), dim, index, source.float()).to(x.dtype)
        return operator(x.float(), dim, index, source.float(), *args, **more).to(x.dtype)

    return changed


def filled_at_places(x: torch.Tensor, dim: int, index: torch.Tensor, number: Any) -> Any:
    """A scatter of a tensor if ``number`` is a symbol, which Inductor's kernel does not take."""
    symbol = isinstance(number, torch.SymInt)
    if not symbol:
        return NotImplemented
    source = torch.full(index.shape, number, dtype=x.dtype, device=x.device)
    return aten.scatter.src(x, dim, index, source)


def scalar_tensor(number: Any, *, dtype: torch.dtype | None = None, **more: Any) -> Any:
    """A tensor of the default data type where none is given: Inductor's has that of the number."""
    if dtype is not None or isinstance(number, complex):
        return NotImplemented
    return aten.scalar_tensor.default(number, dtype=torch.get_default_dtype(), **more)


aten = torch.ops.aten

CONVERSIONS: dict[Any, Formula] = {
    aten.copy.default: copied_to,
    aten.scalar_tensor.default: scalar_tensor,
}
ENDS: dict[Any, Formula] = {
    aten.clamp_min.default: clamped_below,
    aten.clamp_max.default: clamped_above,
}
FACTORS: dict[Any, Formula] = {
    aten.addcmul.default: sum_of_product,
    aten.addcdiv.default: sum_of_quotient,
}
OF_SMALL: dict[Any, Formula] = {
    **{
        operator: ends_of_small(operator)
        for operator in (
            aten.amax.default, aten.amin.default, aten.argmax.default, aten.argmin.default,
            aten.max.default, aten.max.dim, aten.min.default, aten.min.dim,
        )
    },
    **{
        operator: sums_of_bytes(operator)
        for operator in (
            aten.sum.default, aten.sum.dim_IntList, aten.prod.default, aten.prod.dim_int,
        )
    },
}  # fmt: skip

AT_PLACES: dict[Any, Formula] = {
    aten.scatter.value: filled_at_places,
    **{
        operator: sums_at_places(operator)
        for operator in (
            aten.scatter_add.default, aten.scatter.reduce, aten.scatter.value_reduce,
            aten.scatter_reduce.two,
        )
    },
}  # fmt: skip

PROMOTED = (
    aten.xlogy.Tensor,
    aten.special_xlog1py.default,
)
"""Operators of two tensors whose formulas compute halves in float32."""

WITH_HALVES: dict[Any, Formula] = BY_NUMBERS | {
    operator: with_half(operator)
    for operator in (
        aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar,
        aten.fmod.Scalar, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self,
        aten.special_xlog1py.other_scalar, aten.special_xlog1py.self_scalar,
    )
}  # fmt: skip
"""Operators of a half and a number, which kernels round to the half or, as a factor, do not."""

MULTIPLES: dict[Any, Formula] = {
    operator: with_factor(operator) for operator in (aten.add.Tensor, aten.sub.Tensor)
}
"""Sums and differences with a factor."""

IN_PARTS = (aten.lerp.Scalar, aten.lerp.Tensor, aten.round.decimals)
"""Operators whose formulas round halves in between."""
