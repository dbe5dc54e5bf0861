"""Version counters of tensors: what autograd compares to see that a saved tensor was written."""

from __future__ import annotations

import torch

from tj_torch.torch_private.runtime import set_version_counter, unsafe_view

__all__ = ["bump_version", "set_version", "versioned"]


def bump_version(tensor: torch.Tensor, count: int, /) -> None:
    """Count ``count`` writes to ``tensor``."""
    for _ in range(count):
        torch.autograd.graph.increment_version(tensor)


def set_version(tensor: torch.Tensor, count: int, /) -> None:
    """Let ``tensor`` have been written ``count`` times since it was made."""
    set_version_counter(tensor, count)


def versioned(tensor: torch.Tensor, count: int, /) -> torch.Tensor:
    """``tensor``, which then has been written ``count`` times since it was made, and is no view."""
    if tensor._is_view():  # of what nobody else has: a new value, under the shape of its memory
        tensor = unsafe_view(tensor, tensor.shape)
    set_version(tensor, count)
    return tensor
