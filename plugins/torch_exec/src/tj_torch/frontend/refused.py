"""Calls that fakes allow and others refuse, which must stay where they are, to raise there."""

from __future__ import annotations

from typing import Any

import torch
from tj_core.proxy import TensorProxy
from tj_core.symbol import BoundSymbol

from tj_torch.dialect import convert

__all__ = ["may_be_refused"]

TELLS_AUTOGRAD = frozenset({"Tensor.detach_", "Tensor.requires_grad_"})
"""These change what a tensor is to autograd."""


def may_be_refused(call: BoundSymbol, made: Any) -> bool:
    """Whether ``call``, which made the fake ``made``, may raise for a tensor that is no fake."""
    return call.symbol.name in TELLS_AUTOGRAD or _is_refused_view(call, made)


def _is_refused_view(call: BoundSymbol, made: Any) -> bool:
    """Whether ``call`` is a view that a tensor's strides do not allow."""
    if call.symbol.name != "Tensor.view" or not isinstance(made, torch.Tensor):
        return False
    viewed = call.flat_args[0]
    if not isinstance(viewed, TensorProxy) or viewed.dtype != convert.dtype_to_core(made.dtype):
        return False
    if not all(isinstance(n, int) for n in (*viewed.shape, *viewed.strides, *made.shape)):
        return False
    try:  # a tensor without memory, of which PyTorch's own kernel judges
        like: Any = torch.empty_strided(viewed.shape, viewed.strides, device="meta")  # type: ignore[arg-type]
        like.view(made.shape)
    except RuntimeError:
        return True
    return False
