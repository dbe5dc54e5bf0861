"""Arguments of which PyTorch may refuse to change what they are to autograd."""

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
    """``run``, or ``otherwise`` where PyTorch would refuse something on the way.

    None of the arguments at the places ``detached``, which are cut off from autograd, may be a
    view; those at ``freed``, which are to require no gradient any more, must be leaves.
    """

    def computation(*args: Any) -> Any:
        if any(args[i]._is_view() for i in detached) or not all(args[i].is_leaf for i in freed):
            return otherwise(*args)
        return run(*args)

    return computation
