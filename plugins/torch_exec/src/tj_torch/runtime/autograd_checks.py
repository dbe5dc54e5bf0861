"""Check arguments for `detach_` and `requires_grad_`, which PyTorch refuses for some tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["if_autograd_allows"]


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
        if any(args[i]._is_view() for i in detached) or not all(args[i].is_leaf for i in freed):
            return otherwise(*args)
        return run(*args)

    return computation
