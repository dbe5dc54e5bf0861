"""Bounds check of index tensors, before a kernel reads with them."""

from __future__ import annotations

import torch

__all__ = ["check_index"]


def check_index(index: torch.Tensor, low: int, high: int, /) -> None:
    """Check that all elements of ``index``, an integer tensor on the CPU, are in [low, high).

    :raises IndexError: if one is not.
    """
    if index.numel() == 1:
        first = last = int(index)
    elif index.numel():
        first, last = (int(number) for number in torch.aminmax(index))
    else:
        return
    if not low <= first <= last < high:
        wrong = first if first < low else last
        raise IndexError(f"index {wrong} is out of bounds: it is not in range({low}, {high})")
