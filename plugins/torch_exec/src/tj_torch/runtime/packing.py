"""Hooks on saved tensors that raise: a checkpoint stops its second run so.

Of a functional program tensors are packed when all of it has run, and nothing is written yet. In
eager what comes before the tensor that is packed has been written then, so the acquired program
runs in its place.
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
    """Whether the hook that packs what autograd saves has raised ``error``."""
    code = getattr(pack_hook(), "__code__", None)
    frames = traceback.walk_tb(error.__traceback__)
    return code is not None and any(frame.f_code is code for frame, _ in frames)


@dataclass(slots=True)
class Acquired:
    """The acquired ``program`` in the place of one of which a hook has raised.

    ``packed`` is how many tensors autograd saves of it.
    """

    program: Callable[..., Any]
    packed: int | None = None

    def stop(self, args: Sequence[Any], error: Exception, restore: Callable[[], None]) -> NoReturn:
        """Write what comes before the error, and raise it.

        A checkpoint raises at the last tensor that it needs. Another hook is asked again.
        ``restore`` restores the states of random number generators.
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
    """Counts the tensors that are packed; raises ``error`` at the ``last`` one."""

    def __init__(self, last: int | None = None, error: Exception | None = None) -> None:
        self.count = 0
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
    copies = [_copy(a) if isinstance(a, torch.Tensor) else a for a in args]
    counting = _Counting()
    with counting:
        program(*copies)
    return counting.count


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that may be written, whatever ``tensor`` is to autograd."""
    copy = tensor.detach().clone()
    return copy.requires_grad_().clone() if tensor.requires_grad else copy
