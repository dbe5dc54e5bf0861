"""Decompositions of divisions and comparisons, where Inductor's own round or raise otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "BY_NUMBERS",
    "COMPARISONS",
    "DIVISIONS",
    "HALVES",
    "INTEGERS",
    "SIGNS",
    "Formula",
    "widened",
]

Formula = Callable[..., Any]

HALVES = (torch.bfloat16, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def widened(x: torch.Tensor) -> torch.Tensor:
    """``x``, a half as a float32."""
    return x.float() if x.dtype in HALVES else x


def floor_divided(a: Any, b: Any) -> Any:
    """``a // b`` of floats by a remainder, as in PyTorch's kernels and in Python.

    The floor of a rounded quotient may be one too large (``1.0 // 0.1`` is 9), and for an infinite
    ``a`` it is infinite, not NaN.
    """
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return NotImplemented
    a, b = _wide(a, b, dtype)[0], _divisor(b, dtype, _device(a, b))
    quotient, rest = a / b, torch.fmod(a, b)
    # Vectors have NaN as the rest where the quotient is too large for the data type.
    too_large = torch.logical_and(quotient.isinf(), torch.logical_not(a.isinf()))
    whole = torch.where(too_large, a, a - rest) / b
    whole = torch.where(_of_other_sign(rest, b), whole - 1, whole)
    below = torch.floor(whole)
    below = torch.where(whole - below > 0.5, below + 1, below)
    found = torch.where(whole == 0, torch.copysign(torch.zeros_like(quotient), quotient), below)
    return torch.where(b == 0, quotient, found).to(dtype)


def remainder(a: Any, b: Any) -> Any:
    """``a % b`` of floats by C's remainder; Inductor's vector code returns NaN for infinite
    divisors.
    """
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return NotImplemented
    a, b = _wide(a, b, dtype)
    rest = torch.fmod(a, b)
    return torch.where(_of_other_sign(rest, b), rest + b, rest).to(dtype)


def _divisor(b: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """``b`` as `_wide` makes it; kernels for halves do not round a number, or a tensor without
    dimensions, if they divide by it.
    """
    wide = torch.float32 if dtype in HALVES else dtype
    return _tensor(b, wide if _is_one(b) else dtype, device).to(wide)


def _is_one(value: Any) -> bool:
    """Check for a number, or a tensor without dimensions."""
    return not isinstance(value, torch.Tensor) or not value.dim()


def with_exact_number(operator: Any) -> Formula:
    """Let ``operator``, a product or quotient of a half, take a tensor of one number as it is.

    So do PyTorch's kernels for CPUs, if it comes second and has no dimensions.
    """

    def changed(a: Any, b: Any) -> Any:
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        if not tensors or b.dim() or b.dtype in HALVES or a.device.type != "cpu":
            return NotImplemented
        if a.dtype not in HALVES or torch.result_type(a, b) != a.dtype:
            return NotImplemented
        return operator(a.float(), b.float()).to(a.dtype)

    return changed


def _of_other_sign(rest: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """True where ``rest`` is not 0, and has not the sign of ``b``.

    The operators are logical ones, because Inductor knows that these return bools (see `differ`).
    """
    return torch.logical_and(rest != 0, torch.logical_xor(b < 0, rest < 0))


def _wide(a: Any, b: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands, one of which is a tensor, as tensors of the type that kernels divide in.

    Each is rounded to ``dtype`` first: an integer may have more digits than a half has.
    """
    device = _device(a, b)
    wide = torch.float32 if dtype in HALVES else dtype
    first, second = (_tensor(v, dtype, device).to(wide) for v in (a, b))
    return first, second


def _tensor(value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """``value``, a number or a tensor, as a tensor.

    Of a symbol, ``torch.as_tensor`` makes a constant of 32 bits, and the region's for its value.
    """
    if isinstance(value, torch.SymInt):
        number: Any = value
        return torch.scalar_tensor(number, dtype=dtype, device=device)
    return torch.as_tensor(value, dtype=dtype, device=device)


def _device(a: Any, b: Any) -> torch.device:
    """The device of the operand that is a tensor."""
    device: torch.device = (a if isinstance(a, torch.Tensor) else b).device
    return device


def by_mode(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """``a / b`` with a rounding mode; see `floor_divided` and `_truncated`."""
    if rounding_mode == "floor":
        return floor_divided(a, b)
    return _truncated(a, b) if rounding_mode == "trunc" else NotImplemented


def _truncated(a: Any, b: Any) -> Any:
    """The quotient without its fraction, of integers: Inductor's ends the process if ``b`` is 0.

    Its remainder raises for 0, and so does its floor. Of halves, see `_divisor`.
    """
    dtype = torch.result_type(a, b)
    if dtype in HALVES and _is_one(b):
        divisor = _divisor(b, dtype, _device(a, b))
        return torch.trunc(_wide(a, b, dtype)[0] / divisor).to(dtype)
    numbers = not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor)
    if numbers or torch.result_type(a, b) not in INTEGERS:
        return NotImplemented
    return torch.floor_divide(a - torch.fmod(a, b), b)


def differ(a: Any, b: Any) -> Any:
    """``a != b`` of bools.

    Where values are known at compile time to lie in ranges, such as those of an ``arange``,
    Inductor compares the ends of both ranges, and SymPy raises for bools.
    """
    return _of_bools(torch.logical_xor, a, b)


def agree(a: Any, b: Any) -> Any:
    """``a == b`` of bools; see `differ`."""
    different = differ(a, b)
    return different if different is NotImplemented else torch.logical_not(different)


def smaller(a: Any, b: Any) -> Any:
    """`minimum` of bools; see `differ`."""
    return _of_bools(torch.logical_and, a, b)


def larger(a: Any, b: Any) -> Any:
    """`maximum` of bools; see `differ`."""
    return _of_bools(torch.logical_or, a, b)


def larger_number(a: torch.Tensor, b: torch.Tensor) -> Any:
    """`fmax`; of equal zeros the first, as C's function: Inductor has the second.

    So has PyTorch's kernel for bfloat16.
    """
    return _chosen(torch.ge, a, b)


def smaller_number(a: torch.Tensor, b: torch.Tensor) -> Any:
    """`fmin`; see `larger_number`."""
    return _chosen(torch.le, a, b)


def _chosen(preferred: Formula, a: torch.Tensor, b: torch.Tensor) -> Any:
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point or dtype is torch.bfloat16:
        return NotImplemented
    a, b = a.to(dtype), b.to(dtype)
    return torch.where(torch.logical_or(preferred(a, b), b.isnan()), a, b)


SMALL = (torch.int8, torch.int16, torch.uint8)
"""Data types whose elements become an ``int`` in arithmetic of C++.

Inductor's code for single numbers goes on with that, where it calls a function or chooses between
literals. Calls after it take the absolute value of the smallest number, which is that number, for
positive, or do not compile.
"""


def absolute(x: torch.Tensor) -> Any:
    """`abs` of a `SMALL` type."""
    return torch.where(x < 0, -x, x) if x.dtype in SMALL else NotImplemented


def sign(x: torch.Tensor) -> Any:
    """`sign` and `sgn` of a `SMALL` type."""
    if x.dtype not in SMALL:
        return NotImplemented
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def has_sign(x: torch.Tensor) -> Any:
    """`signbit` of `HALVES`, NaN included.

    Inductor takes it element by element; GCC 12 fails to compile that for bfloat16 and AVX-512.
    """
    return torch.copysign(torch.ones_like(x), x) < 0 if x.dtype in HALVES else NotImplemented


def _of_bools(formula: Formula, a: Any, b: Any) -> Any:
    """``formula`` of two bools, tensors or not."""
    bools = all(isinstance(v, bool) or getattr(v, "dtype", None) is torch.bool for v in (a, b))
    if not bools:
        return NotImplemented
    return formula(*(torch.as_tensor(v, device=_device(a, b)) for v in (a, b)))


aten = torch.ops.aten

BY_NUMBERS: dict[Any, Formula] = {
    operator: with_exact_number(operator) for operator in (aten.div.Tensor, aten.mul.Tensor)
}
DIVISIONS: dict[Any, Formula] = {
    aten.floor_divide.default: floor_divided,
    aten.remainder.Tensor: remainder,
    aten.remainder.Scalar: remainder,
    aten.remainder.Scalar_Tensor: remainder,
    aten.div.Tensor_mode: by_mode,
    aten.div.Scalar_mode: by_mode,
}
SIGNS: dict[Any, Formula] = {
    aten.abs.default: absolute,
    aten.sgn.default: sign,
    aten.sign.default: sign,
    aten.signbit.default: has_sign,
}
COMPARISONS: dict[Any, Formula] = {
    aten.eq.Scalar: agree,
    aten.eq.Tensor: agree,
    aten.ne.Scalar: differ,
    aten.ne.Tensor: differ,
    aten.minimum.default: smaller,
    aten.maximum.default: larger,
    aten.fmax.default: larger_number,
    aten.fmin.default: smaller_number,
}
