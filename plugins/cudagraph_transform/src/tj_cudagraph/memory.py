"""Tensors in memory of their own, with the metadata of others."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["apart", "distinct", "like", "overlaps"]


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for ``tensor``: its shape, strides, data type and device."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without repetitions: of a size that is expanded, the first element."""
    for i, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(i, 0, 1)
    return tensor


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements of ``tensor`` may share memory, but for those of expanded sizes."""
    reach = 1
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(p for p in pairs if p[0] != 0 and p[1] > 1):
        if stride < reach:
            return True
        reach += stride * (size - 1)
    return False


def apart(results: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> bool:
    """Whether each of ``results`` is in memory of its own."""
    memory = [t.untyped_storage().data_ptr() for t in results if t.untyped_storage().nbytes()]
    given = {t.untyped_storage().data_ptr() for t in inputs}
    return len(set(memory)) == len(memory) and given.isdisjoint(memory)
