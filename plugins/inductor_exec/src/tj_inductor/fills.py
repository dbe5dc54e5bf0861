"""Decompositions for constants, and for sums along them, which Inductor replaces by a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tj_inductor.arithmetic import INTEGERS, Formula

__all__ = ["FILLS"]

aten = torch.ops.aten


def full(size: Any, value: Any, *, dtype: torch.dtype | None = None, **more: Any) -> Any:
    """A constant whose number is of its data type: Inductor goes on with the number as it is."""
    made = _number(dtype)
    plain = isinstance(value, bool | int | float)
    if made is None or not plain or type(value) is made:
        return NotImplemented
    return aten.full.default(size, made(value), dtype=dtype, **more)


def _number(dtype: torch.dtype | None) -> Callable[[Any], Any] | None:
    """The type of Python's numbers for ``dtype``; None for complex numbers, or without a type."""
    if dtype is torch.bool:
        return bool
    if dtype in INTEGERS:
        return int
    return float if dtype is not None and dtype.is_floating_point else None


def cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Sums along ``dim``, in the type that sums of ``x`` have without ``dtype``.

    Along a constant, Inductor takes multiples of the number for the sums, in the constant's type
    (`pointless_cumsum_replacement` in torch/_inductor/fx_passes/post_grad.py, up to 2.15), and
    fails if it has no dimension.
    """
    usual = x.dtype if x.is_floating_point() or x.is_complex() else torch.int64
    if x.dim() == 0:
        return x.to(dtype or usual, copy=True)
    if dtype is None or dtype is usual:
        return NotImplemented
    return x.to(dtype).cumsum(dim).to(dtype)


FILLS: dict[Any, Formula] = {aten.full.default: full, aten.cumsum.default: cumsum}
"""Formulas of constants and of sums along them, by operator."""
