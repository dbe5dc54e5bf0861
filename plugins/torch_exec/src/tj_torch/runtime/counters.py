"""Version counters of tensors, by which autograd detects writes to saved tensors.

Tensors that are made in inference mode have none. A part of a program with graph breaks runs in
that mode, too, where it was compiled for calls without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tj_torch.torch_private.runtime import set_version_counter, unsafe_view

__all__ = ["bump_version", "bump_versions", "set_version", "versioned"]


def bump_version(tensor: torch.Tensor, count: int, /) -> None:
    """Add ``count`` to the version of ``tensor``."""
    for _ in range(0 if tensor.is_inference() else count):
        torch.autograd.graph.increment_version(tensor)


def bump_versions(tensors: Sequence[torch.Tensor], count: int, /) -> None:
    """Add ``count`` to the version of each of ``tensors``."""
    for _ in range(count):
        # It leaves out tensors that have no counter.
        torch.autograd.graph.increment_version(tensors)


def set_version(tensor: torch.Tensor, count: int, /) -> None:
    """Set the version of ``tensor`` to ``count``."""
    if not tensor.is_inference():
        set_version_counter(tensor, count)


def versioned(tensor: torch.Tensor, count: int, /) -> torch.Tensor:
    """``tensor`` with version ``count``, as no view."""
    if tensor._is_view():  # its base is unreachable: the view is a new value
        tensor = unsafe_view(tensor, tensor.shape)
    set_version(tensor, count)
    return tensor
