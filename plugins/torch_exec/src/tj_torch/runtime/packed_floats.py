"""Floats of a program as one tensor, for kernels that take no numbers."""

from __future__ import annotations

from array import array

import torch

__all__ = ["float32s", "float64s"]

LARGEST = torch.finfo(torch.float32).max


def float64s(*numbers: float) -> torch.Tensor:
    """``numbers`` as a float64 tensor of shape ``(len(numbers),)`` on the CPU."""
    if torch.SymFloat in map(type, numbers):
        return _stacked(numbers, torch.float64)
    # A third of the time of `torch.tensor` for ten numbers, a tenth of that of a tensor for each.
    return torch.frombuffer(array("d", numbers), dtype=torch.float64)


def float32s(*numbers: float) -> torch.Tensor:
    """``numbers`` as a float32 tensor of shape ``(len(numbers),)`` on the CPU.

    :raises RuntimeError: if one is finite, and too large for float32.
    """
    if torch.SymFloat in map(type, numbers) or any(not -LARGEST <= n <= LARGEST for n in numbers):
        return _stacked(numbers, torch.float32)
    return torch.frombuffer(array("f", numbers), dtype=torch.float32)


def _stacked(numbers: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
    """``numbers``, of which an array would ask for the value of a symbol, or take all."""
    return torch.stack([torch.scalar_tensor(n, dtype=dtype) for n in numbers])
