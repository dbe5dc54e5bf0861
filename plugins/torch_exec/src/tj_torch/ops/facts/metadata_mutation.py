"""Mutations of autograd metadata: ``x.detach_()``, ``x.requires_grad_()``.

The epilogue of a functional program repeats them on the caller's tensors; in the program itself,
a tensor after ``detach_`` is a detached view of the tensor before.
"""

from __future__ import annotations

from tj_core.extend import BoundSymbol, TensorProxy

__all__ = ["detaches", "is_autograd_change", "why_not_functional"]

_DETACH = frozenset({"Tensor.detach_", "detach_", "detach_.default"})
_REQUIRES_GRAD = "Tensor.requires_grad_"


def is_autograd_change(call: BoundSymbol) -> bool:
    """Test for a call that changes autograd metadata of its argument and nothing else."""
    return detaches(call) or call.symbol.name == _REQUIRES_GRAD


def detaches(call: BoundSymbol) -> bool:
    """Test for ``detach_``, which PyTorch refuses for views."""
    return call.symbol.name in _DETACH


def why_not_functional(call: BoundSymbol, *, own: bool, given: bool) -> str | None:
    """Reason why ``call`` cannot be in a functional program, None if it can.

    ``own``: the argument is no view; ``given``: it is an input of the program.
    """
    if not call.effects.aliases:
        return f"what {call.symbol} does is not known"
    if detaches(call):
        # "Can't detach views in-place", which the call itself has to raise.
        return None if own else "detach_ of a view, which PyTorch refuses"
    (tensor,) = call.flat_args
    if not call.effects.rebinds:
        return None
    if isinstance(tensor, TensorProxy) and not tensor.requires_grad:
        return "a tensor that required no grad becomes a leaf that does"
    return None if own and given else "requires_grad_(False) of a computed tensor, which is no leaf"
