"""Sums over rows, which Inductor reads in an order that caches do not follow; cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tj_inductor.arithmetic import HALVES, Formula, widened

__all__ = ["SUMS", "sum_of_rows"]


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


LARGE = 256 << 10
"""Number of bytes from which rows are summed in blocks: fewer stay in a cache near the core."""

BLOCKS = (16, 8, 32)
"""Rows of a block of many bytes, in order of preference."""

MANY = 256
"""Number of rows from which their sums are taken in blocks, whatever their size: an error grows
with the terms that are added one after another, and eager's kernels add pairs of sums."""


def sum_of_rows(
    x: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Sums over the outer dimensions in memory, such as gradients of biases: of blocks, then of
    their sums.

    Inductor's kernels take some columns at a time, and go down all rows for each: every line of a
    cache is fetched several times, and rows of a power of two displace one another. A sum over 2048
    rows of 3072 numbers took 4.6 times as long (AVX2, one thread). And they add all rows one after
    another: a sum of 2112 rows had 17 times eager's error. Other sums: ``NotImplemented``.
    """
    kind = dtype or x.dtype
    fixed = all(isinstance(n, int) for n in x.shape)
    floats = x.is_floating_point() and kind.is_floating_point
    if not fixed or not dim or x.dim() < 2 or not floats:
        return NotImplemented
    reduced = {d % x.dim() for d in dim}
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], d))
    count = math.prod(x.shape[d] for d in reduced)
    large = x.numel() * x.element_size() >= LARGE and count >= 8 * BLOCKS[0]
    block = _block(count, large)
    outer = len(reduced) < x.dim() and {*order[: len(reduced)]} == reduced
    if x.device.type != "cpu" or block is None or not outer:
        return NotImplemented
    rows = x.permute(order)
    if not rows.is_contiguous():
        return NotImplemented
    # Eager adds halves in float32, and rounds the sum.
    wide = torch.float32 if kind in HALVES else kind
    kept = [d for d in range(x.dim()) if d not in reduced]
    made = rows.reshape(count, *rows.shape[len(reduced) :])
    while block is not None:
        count //= block
        made = made.reshape(count, block, *made.shape[1:]).sum(1, dtype=wide)
        block = _block(count)
    made = made.sum(0).to(kind)
    inner = order[len(reduced) :]
    made = made.permute([inner.index(d) for d in kept])
    shape = [1 if d in reduced else x.shape[d] for d in range(x.dim())]
    return made.reshape(shape) if keepdim else made


def mean_of_rows(
    x: torch.Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Means over the outer dimensions in memory, by `sum_of_rows`; others: ``NotImplemented``."""
    kind = dtype or x.dtype
    made = sum_of_rows(x, dim, keepdim, dtype=torch.float32 if kind in HALVES else kind)
    if made is NotImplemented:
        return made
    return (made / math.prod(x.shape[d] for d in dim or ())).to(kind)


def _block(count: int, large: bool = False) -> int | None:
    """Rows of a block for sums of ``count`` rows; None for sums without blocks.

    Those nearest to the root, for the shortest chains; of ``large`` tensors, few of `BLOCKS`, which
    caches hold.
    """
    if large and (preferred := next((n for n in BLOCKS if count % n == 0), None)):
        return preferred
    fitting = [n for n in range(8, 65) if count % n == 0]
    if count < MANY or not fitting:
        return None
    return min(fitting, key=lambda n: abs(n - math.isqrt(count)))


SUMS: dict[Any, Formula] = {
    torch.ops.aten.cumsum.default: cumsum,
    torch.ops.aten.mean.dim: mean_of_rows,
}
"""The formulas of sums along dimensions, by operator."""
