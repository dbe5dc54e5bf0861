"""Tensors with the metadata of others, in memory of their own; tests for shared memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tj_core.extend import strides_overlap

__all__ = ["apart", "distinct", "like", "overlaps"]


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Allocate memory with the shape, strides, data type and device of ``tensor``."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without its expanded dimensions: the first element of each."""
    for i, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(i, 0, 1)
    return tensor


def overlaps(tensor: torch.Tensor) -> bool:
    """Check that elements of ``tensor`` may share memory, expanded dimensions aside."""
    strides = tensor.stride()
    shape = (1 if t == 0 else n for n, t in zip(tensor.shape, strides, strict=True))
    return strides_overlap(shape, strides)


def apart(results: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> bool:
    """Check that each of ``results`` has a storage of its own, which is no input's."""
    # Memory of no bytes is at address 0, whosever it is.
    memory = [t.untyped_storage().data_ptr() for t in results if t.untyped_storage().nbytes()]
    given = {t.untyped_storage().data_ptr() for t in inputs}
    return len(set(memory)) == len(memory) and given.isdisjoint(memory)
