"""The data type to which the kernel of an elementwise operator casts its operands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["common_dtype"]


def common_dtype(operands: Sequence[Any], result: torch.Tensor) -> torch.dtype:
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


def _of_number(number: Any) -> torch.dtype:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    return torch.complex64 if isinstance(number, complex) else torch.get_default_dtype()


def _category(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype != torch.bool)
