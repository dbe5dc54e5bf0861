"""Checks in programs: ``assert`` statements, bounds of index tensors, arguments of `detach_`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tj_torch.torch_private.ops import ASSERTED_NUMBER

__all__ = ["assert_number", "asserted", "check_index", "if_autograd_allows"]


def asserted(condition: Any, *message: str) -> None:
    """Do ``assert condition, message``.

    :raises AssertionError: if the condition does not hold.
    """
    if not condition:
        raise AssertionError(*message)


def assert_number(holds: Any, message: str) -> None:
    """Do what ``torch.ops.aten._assert_scalar`` does, without its dispatch where it ``holds``.

    :raises RuntimeError: if it does not.
    """
    if not holds:
        ASSERTED_NUMBER(holds, message)


def check_index(index: torch.Tensor, low: int, high: int, /) -> None:
    """Check that all elements of ``index``, an integer tensor on the CPU, are in [low, high).

    Before a kernel reads with them.

    :raises IndexError: if one is not.
    """
    # One read instead of two reductions; `aminmax` raises for a tensor without elements.
    if index.numel() == 1:
        first = last = int(index)
    elif index.numel():
        first, last = (int(number) for number in torch.aminmax(index))
    else:
        return
    if not low <= first <= last < high:
        wrong = first if first < low else last
        raise IndexError(f"index {wrong} is out of bounds: it is not in range({low}, {high})")


def if_autograd_allows(
    run: Callable[..., Any],
    detached: Sequence[int],
    freed: Sequence[int],
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """``run``, or ``otherwise`` where PyTorch would raise for one of the arguments.

    Arguments at ``detached`` are detached in place and must not be views; those at ``freed`` stop
    requiring grad and must be leaves.
    """

    def computation(*args: Any) -> Any:
        # "Can't detach views in-place", and `requires_grad_(False)` is for leaves alone.
        if any(args[i]._is_view() for i in detached) or not all(args[i].is_leaf for i in freed):
            return otherwise(*args)
        return run(*args)

    return computation
