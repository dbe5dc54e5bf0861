"""Floats of a program as one tensor, for kernels that take no numbers; the float in a tensor."""

from __future__ import annotations

from array import array

import torch

__all__ = ["float32s", "float64s", "number_of_sum"]

INTEGERS = 1 << 24
"""The largest number up to which float32 has all integers."""

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


def number_of_sum(count: torch.Tensor, number: int) -> float:
    """``(count + number).item()`` for a ``count`` in float32 or float64, of one element.

    ``number`` is an integer of at most 24 bits, and not zero, so that the sum is not subnormal.
    """
    made = float(count.item()) + number
    if count.dtype is torch.float64 or (made.is_integer() and abs(made) <= INTEGERS):
        return made
    # The sum of two numbers of float32 that is rounded twice is that which is rounded once.
    return torch.tensor(made, dtype=torch.float32).item()


def _stacked(numbers: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
    """``numbers``, of which an array would ask for the value of a symbol, or take all."""
    return torch.stack([torch.scalar_tensor(n, dtype=dtype) for n in numbers])
