"""Saved-tensor hooks that raise, as a checkpoint does to stop its recomputation early.

A functional program packs its saved tensors at its end, before the epilogue's writes. In eager all
writes before a packed tensor have happened when its hook raises, so the acquired program runs
instead.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from tj_torch.torch_private.runtime import StopRecomputation, pack_hook

__all__ = ["Acquired", "is_of_hook"]


def is_of_hook(error: Exception) -> bool:
    """Test for an ``error`` from the pack hook that is active (`saved_tensors_hooks`)."""
    code = getattr(pack_hook(), "__code__", None)
    frames = traceback.walk_tb(error.__traceback__)
    return code is not None and any(frame.f_code is code for frame, _ in frames)


@dataclass(slots=True)
class Acquired:
    """Acquired ``program``, which runs instead of a functional one whose pack hook raised.

    ``packed`` is the number of tensors that autograd saves in it, once known.
    """

    program: Callable[..., Any]
    packed: int | None = None

    def stop(self, args: Sequence[Any], error: Exception, restore: Callable[[], None]) -> NoReturn:
        """Repeat the program's writes before the error, then raise the error.

        A checkpoint's hook raises at the last tensor that it needs, and its error is raised there
        again. Any other hook is called again. ``restore`` sets back the random number generators.
        """
        try:
            if not isinstance(error, StopRecomputation):
                self.program(*args)
                raise error
            if self.packed is None:
                self.packed = _packed(self.program, args)
                restore()
            with _Counting(self.packed, error):
                self.program(*args)
            raise error
        finally:
            del error  # its traceback holds this frame


class _Counting(torch.autograd.graph.saved_tensors_hooks):
    """Hooks that count packed tensors, and raise ``error`` at number ``last``."""

    def __init__(self, last: int | None = None, error: Exception | None = None) -> None:
        self.count = 0
        # In a list, to be let go once raised: the hooks would keep its traceback alive.
        errors = [error]

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            self.count += 1
            if self.count == last and (raised := errors.pop()) is not None:
                try:
                    raise raised
                finally:
                    del raised
            return tensor

        super().__init__(pack, lambda tensor: tensor)


def _packed(program: Callable[..., Any], args: Sequence[Any]) -> int:
    # The run only counts: what it writes must not reach the arguments.
    copies = [_copy(a) if isinstance(a, torch.Tensor) else a for a in args]
    counting = _Counting()
    with counting:
        program(*copies)
    return counting.count


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy that may be written in place: no leaf, and requiring grad as ``tensor`` does."""
    copy = tensor.detach().clone()
    # PyTorch refuses a write to a leaf that requires grad.
    return copy.requires_grad_().clone() if tensor.requires_grad else copy
