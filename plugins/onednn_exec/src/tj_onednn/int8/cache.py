"""Rounded weights, kept by a program's call from run to run."""

from __future__ import annotations

from typing import Any

import torch

from tj_onednn.adapter import version
from tj_onednn.int8.kernels import quantise
from tj_onednn.packing import Frozen

__all__ = ["Rounded", "kept"]

Tensor = torch.Tensor
Made = tuple[Tensor, Tensor]


class Rounded:
    """The weight of one call in int8, and what it was made of.

    It holds the memory of the weight, so that no other tensor gets the address.
    """

    __slots__ = ("last",)

    def __init__(self, call: Any = None) -> None:
        # One tuple, replaced at once: a program may run on several threads.
        self.last: tuple[Frozen, int, Made] | None = None

    def of(self, weight: Tensor, transposed: bool) -> Made:
        """The rounded ``weight``: kept, or made now if it was written or is another one."""
        last = self.last
        if last is not None:
            frozen, seen, made = last
            same = frozen.weight.data_ptr() == weight.data_ptr() and frozen.of(weight)
            # Another tensor on the same memory may have a version counter of its own.
            if same and not frozen.written and version(weight) == seen:
                return made
        return self.make(weight, transposed)

    def make(self, weight: Tensor, transposed: bool) -> Made:
        """Round ``weight``, and keep what is made if its writes are counted."""
        try:
            # Before the weight is read: a write on another thread is seen next time.
            frozen, seen = Frozen(weight.detach(), version(weight)), version(weight)
        # "Inference tensors do not track version counter."
        except RuntimeError:
            self.last = None
            return quantise(weight, transposed)
        made = quantise(weight, transposed)
        self.last = frozen, seen, made
        return made


def kept(weight: Tensor, transposed: bool = False, *, state: Rounded) -> Made:
    """Compute `quantise`, or find it in ``state``."""
    return state.of(weight, transposed)
