"""Sums along a dimension, which Inductor replaces by a range if it sums a constant."""

from __future__ import annotations

from typing import Any

import torch

from tj_inductor.arithmetic import HALVES, Formula, widened

__all__ = ["SUMS"]


def cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Sums along ``dim``, in the type that sums of ``x`` have without ``dtype``; of halves in
    float32, as PyTorch's kernel has it.

    Along a constant, Inductor takes multiples of the number for the sums, in the constant's type
    (`pointless_cumsum_replacement` in torch/_inductor/fx_passes/post_grad.py, up to 2.15), and
    fails if it has no dimension.
    """
    usual = x.dtype if x.is_floating_point() or x.is_complex() else torch.int64
    kind = dtype or usual
    if x.dim() == 0:
        return x.to(kind, copy=True)
    if kind is usual and kind not in HALVES:
        return NotImplemented
    return widened(x.to(kind)).cumsum(dim).to(kind)


SUMS: dict[Any, Formula] = {torch.ops.aten.cumsum.default: cumsum}
"""The formula of sums along a dimension, by operator."""
