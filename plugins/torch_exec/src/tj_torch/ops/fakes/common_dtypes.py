"""The data type to which the kernel of an elementwise operator casts, and layouts of the cast."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tj_torch.ops.fakes.layouts import Layout, layout_of, like

__all__ = ["cast_layouts"]


def _common_dtype(operands: Sequence[Any], result: torch.Tensor) -> torch.dtype:
    """The data type in which the kernel computes, of the tensors' dimensions first."""
    ranks: list[list[torch.dtype]] = [[], [], []]
    for a in operands:
        rank = (0 if a.ndim else 1) if isinstance(a, torch.Tensor) else 2
        ranks[rank].append(a.dtype if rank < 2 else _of_number(a))
    found: torch.dtype | None = None
    for dtypes in filter(None, ranks):
        dtype = functools.reduce(torch.promote_types, dtypes)
        if found is None or _category(dtype) > _category(found):
            found = dtype if found is None else torch.promote_types(found, dtype)
    assert found is not None
    if result.is_floating_point() and _category(found) < 2:
        return result.dtype
    return found


def cast_layouts(given: list[Any], cast: Sequence[Any], result: torch.Tensor) -> list[Layout]:
    """The layouts of operands, of which the kernel casts those of ``cast`` to one data type."""
    dtype = _common_dtype(cast, result)

    def is_cast(operand: Any) -> bool:
        known = isinstance(operand, torch.Tensor) and operand.dtype != dtype
        return known and any(operand is other for other in cast)

    layouts = [(layout_of(a), is_cast(a)) for a in given]
    # What is cast has no gaps.
    return [Layout(layout.shape, like(layout)) if new else layout for layout, new in layouts]


def _of_number(number: Any) -> torch.dtype:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    return torch.complex64 if isinstance(number, complex) else torch.get_default_dtype()


def _category(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype != torch.bool)
