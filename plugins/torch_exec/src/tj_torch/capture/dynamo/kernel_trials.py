"""Trial calls of PyTorch's kernels for calls that only their fake kernels take.

Kernels refuse some data types and mixtures of them: ``x - 1.5`` of bools, ``x % 2`` of complex
numbers. Inside of a handler, the program is to see the error.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tj_torch.runtime.modes import without_modes
from tj_torch.torch_private.runtime import OpOverload, pytree

__all__ = ["is_refused"]

_MOST = 4096
"""Elements of the largest argument of a call that is no pointwise one and that is tried."""


def is_refused(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Test if PyTorch's kernel of ``operator`` raises on ones, in place of the fakes given.

    A pointwise call is tried on two elements, another one on tensors of the same shapes. Random
    operators are not tried, nor is what is on another device or has symbols.
    """
    if not isinstance(operator, OpOverload) or operator.namespace != "aten":
        return False
    given = pytree.tree_leaves((args, kwargs))
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    symbols = any(isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool) for x in given)
    pointwise = torch.Tag.pointwise in operator.tags
    random = torch.Tag.nondeterministic_seeded in operator.tags
    if random or symbols or not tensors or not all(_is_plain(t, pointwise) for t in tensors):
        return False

    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = (2,) if pointwise and value.dim() else tuple(value.shape)
        return torch.ones(shape, dtype=value.dtype)

    with without_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made, named = pytree.tree_map(real, (tuple(args), dict(kwargs)))
        try:
            operator(*made, **named)
        except Exception:  # whatever the kernel raises, the program's handler may be for
            return True
    return False


def _is_plain(value: torch.Tensor, pointwise: bool) -> bool:
    """Test for a tensor in memory, of numbers, of which another one can be made here."""
    plain = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
    if not plain or pointwise:
        return plain
    return isinstance(value.numel(), int) and value.numel() <= _MOST
