"""Tensors with equal values in another memory layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

__all__ = ["AS_SAMPLED", "LAYOUTS", "NOT_STRIDED"]

NOT_STRIDED = ("sparse.sampled_addmm", "sparse.mm.reduce")
"""Operations of op_db whose samples have no strides."""

AS_SAMPLED = ("_chunk_cat", "nn.functional.pdist")
"""Operations that run in the layouts of op_db's samples alone.

`_chunk_cat` of tensors without dimensions, and the gradient of `pdist` of no elements, end the
process in eager (PyTorch 2.13).
"""


def _reversed(x: torch.Tensor) -> torch.Tensor:
    """``x`` with its first dimension innermost, as a transposed tensor has it."""
    order = tuple(reversed(range(x.dim())))
    turned = x.detach().permute(order).clone(memory_format=torch.contiguous_format).permute(order)
    return turned.requires_grad_(x.requires_grad)


def _with_gaps(x: torch.Tensor) -> torch.Tensor:
    """``x`` as every second element of each row of something wider."""
    if x.dim() == 0:
        return x
    wide = x.detach().new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    return wide[..., ::2].copy_(x.detach()).requires_grad_(x.requires_grad)


LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reversed": _reversed,
    "gaps": _with_gaps,
}
"""Layouts by name: functions of a strided tensor, which return a leaf for a leaf."""
