"""Autograd metadata mutation: ``x.detach_()``, ``x.requires_grad_()``.

Around a functional program they are made again on the caller's own tensors; inside of it, a tensor
that was cut off from autograd is a detached view of what it was.
"""

from __future__ import annotations

from tj_core.extend import BoundSymbol, TensorProxy

__all__ = ["detaches", "is_autograd_change", "why_not_functional"]

_DETACH = frozenset({"Tensor.detach_", "detach_", "detach_.default"})
_REQUIRES_GRAD = "Tensor.requires_grad_"


def is_autograd_change(call: BoundSymbol) -> bool:
    """Whether ``call`` changes what its argument is to autograd, and nothing else."""
    return detaches(call) or call.symbol.name == _REQUIRES_GRAD


def detaches(call: BoundSymbol) -> bool:
    """Whether ``call`` cuts its argument off from autograd, which no view can be."""
    return call.symbol.name in _DETACH


def why_not_functional(call: BoundSymbol, *, own: bool, given: bool) -> str | None:
    """Why a functional program cannot do what ``call`` does, or None.

    ``own``: the argument is not a view; ``given``: it is the program's, not made in it.
    """
    if not call.effects.aliases:
        return f"what {call.symbol} does is not known"
    if detaches(call):
        return None if own else "a view is to be cut off from autograd, which is an error"
    (tensor,) = call.flat_args
    if not call.effects.rebinds:
        return None
    if isinstance(tensor, TensorProxy) and not tensor.requires_grad:
        return "a tensor that needed no gradient becomes a leaf that does"
    return None if own and given else "a result is to need no gradient, which only leaves can do"
