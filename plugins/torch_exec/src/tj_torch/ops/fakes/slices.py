"""Slices of a dimension without elements, whose rows PyTorch's fake kernel counts by a symbol.

If an end depends on data, it makes a symbol, and finds that it is zero: nothing computes it then.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["settled"]

_SLICE = torch.ops.aten.slice.Tensor


def settled(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a call of ``func``: a slice of nothing begins and ends at zero."""
    if func is not _SLICE or not any(isinstance(end, torch.SymInt) for end in args[2:4]):
        return args
    tensor, dim, *_ = args
    if not tensor.ndim or not isinstance(tensor.shape[dim], int) or tensor.shape[dim]:
        return args
    return (tensor, dim, 0, 0, *args[4:])
