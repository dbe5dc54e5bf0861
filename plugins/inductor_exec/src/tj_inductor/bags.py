"""Gradients of embedding bags, added up row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import Constant, TensorProxy

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

__all__ = ["bag_backward", "why_not_by_rows"]

aten = torch.ops.aten

SUM, MEAN = 0, 1
"""Numbers of the modes of `embedding_bag` whose gradients are by rows."""


def bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bags: torch.Tensor,
    sizes: torch.Tensor,
    maxima: torch.Tensor,
    rows: Any,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    factors: torch.Tensor | None,
    padding: int = -1,
) -> Any:
    """Gradient ``[rows, d]`` of the table of ``aten._embedding_bag``, for ``grad`` ``[n, d]``.

    PyTorch's kernel sorts the ``indices`` first, which takes longer than all additions. ``bags``
    has the bag of each index, or is empty where the forward needed none; ``sizes`` are those of the
    bags ``[n]``, which begin at ``offsets``.
    """
    count = indices.shape[0]
    if bags.shape[0] == 0:
        ends = offsets.new_zeros([count + 1])
        begun = aten.index_put.default(ends, [offsets], torch.ones_like(offsets), True)
        bags = begun.cumsum(0)[:count] - 1
    if mode == MEAN:
        grad = grad * sizes.clamp(min=1).to(grad.dtype).reciprocal().unsqueeze(1)
    added = aten.index.Tensor(grad, [bags])
    if padding >= 0:
        added = added.masked_fill((indices == padding).unsqueeze(1), 0)
    return aten.index_put.default(grad.new_zeros([rows, grad.shape[1]]), [indices], added, True)


def why_not_by_rows(call: BoundSymbol) -> str | None:
    """Reason why the gradient ``call`` is left to PyTorch's kernel, or None."""
    grad, *_, by_frequency, mode, sparse, factors, _ = _plain([*call.args, -1][:12])
    wide = isinstance(grad, TensorProxy) and grad.dtype.name in ("float32", "float64")
    if wide and grad.device.type == "cpu" and not (by_frequency or sparse or factors):
        return None if mode in (SUM, MEAN) else "PyTorch's kernel takes the largest elements"
    return "PyTorch's kernel adds them otherwise"


def _plain(args: list[Any]) -> list[Any]:
    return [x.value if isinstance(x, Constant) else x for x in args]
