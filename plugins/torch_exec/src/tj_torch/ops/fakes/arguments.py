"""Arguments that PyTorch's fake kernels take for others, and of calls without right results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["settled"]

Arguments = tuple[Any, ...]


def settled(func: Any, args: Arguments) -> Arguments:
    """Arguments of a call of ``func`` that its fake kernel takes as its kernel takes ``args``.

    Raises what PyTorch raises for results that have no fakes.
    """
    rule = _RULES.get(func)
    return args if rule is None else rule(args)


def _of_slice(args: Arguments) -> Arguments:
    """Let a slice of nothing begin and end at zero.

    If an end depends on data, the fake kernel counts the rows by a symbol, and finds that it is
    zero: nothing computes it then.
    """
    if not any(isinstance(end, torch.SymInt) for end in args[2:4]):
        return args
    tensor, dim, *_ = args
    if not tensor.ndim or not isinstance(tensor.shape[dim], int) or tensor.shape[dim]:
        return args
    return (tensor, dim, 0, 0, *args[4:])


def _of_sum(args: Arguments) -> Arguments:
    """Let no dimensions be all, as the kernel does; up to 2.13 the fake kernel sums over none."""
    none = len(args) > 1 and args[1] is not None and not len(args[1])
    return (args[0], None, *args[2:]) if none else args


def _of_unique(args: Arguments) -> Arguments:
    """Count the dimension from the first: one from the last gave a shape with too many sizes.

    The fake kernel takes the sizes after dimension -1 from 0 on (`_unique` in
    torch/_subclasses/fake_impls.py, up to 2.15).
    """
    if len(args) < 4 or args[3] is None or args[3] >= 0 or not args[0].ndim:
        return args
    return (*args[:3], args[3] % args[0].ndim)


def _of_quantized(args: Arguments) -> Arguments:
    """Raise, as there are no fakes of quantized tensors: the fake kernel returns one of floats."""
    from tj_torch.torch_private.shapes import UnsupportedFakeTensorException

    raise UnsupportedFakeTensorException("quantized tensors have no fakes")


_RULES: dict[Any, Callable[[Arguments], Arguments]] = {
    torch.ops.aten.slice.Tensor: _of_slice,
    torch.ops.aten.nansum.default: _of_sum,
    torch.ops.aten.unique_consecutive.default: _of_unique,
    torch.ops.aten.quantize_per_tensor.default: _of_quantized,
    torch.ops.aten.quantize_per_tensor.tensor_qparams: _of_quantized,
    torch.ops.aten.quantize_per_tensor.tensors: _of_quantized,
}
