"""Tangents of tensor subclasses, compared with those that the backward was compiled for."""

from __future__ import annotations

import torch
from tj_core.extend import Dim, SymDim, TensorProxy, evaluate_size, size_symbols
from tj_torch.extend import is_wrapper
from tj_torch.internal import is_sized, subclass_of

__all__ = ["compact", "in_this_call", "is_of_other_class"]


def in_this_call(expected: TensorProxy | None, tangent: torch.Tensor | None) -> TensorProxy | None:
    """``expected``; for a tensor subclass, with its symbols
    replaced by the sizes of ``tangent``.
    """
    if expected is None or expected.subclass is None or tangent is None or not is_sized(expected):
        return expected
    pairs = zip(expected.shape, tangent.shape, strict=False)
    known = {n.name: size for n, size in pairs if isinstance(n, SymDim)}

    def size(n: SymDim) -> Dim:
        if n.name in known:
            return known[n.name]
        if known.keys() >= set(size_symbols(n.name)):
            return int(evaluate_size(n.name, known.__getitem__))
        return n  # unlike any stride: then PyTorch's autograd is asked

    return expected.map_symbols(size)


def compact(tangent: torch.Tensor | None, expected: TensorProxy | None) -> torch.Tensor | None:
    """``tangent``; one of a tensor subclass is copied to the strides of ``expected``, if these are
    dense.

    The tangent of a sum is an expanded scalar, with strides of zero.
    """
    if tangent is None or expected is None or expected.subclass is None:
        return tangent
    # Tangents of plain tensors are copied later, by `laid_out`.
    if tangent.stride() == expected.strides or not is_wrapper(tangent):
        return tangent
    strides = [n if isinstance(n, int) else 0 for n in expected.strides]
    order = sorted(range(tangent.dim()), key=lambda i: -strides[i])
    if order == sorted(order):
        return tangent.clone(memory_format=torch.contiguous_format)
    # `clone` knows a few memory formats only: contiguous in another order of dimensions.
    rows = tangent.permute(order).clone(memory_format=torch.contiguous_format)
    return rows.permute([order.index(i) for i in range(tangent.dim())])


def is_of_other_class(tangent: torch.Tensor | None, expected: TensorProxy | None) -> bool:
    """Check that ``tangent`` differs from ``expected`` in class or, for a subclass, in strides or
    parts.
    """
    if expected is None:
        return False
    if expected.subclass is None:
        return tangent is not None and is_wrapper(tangent)
    if tangent is None or tangent.stride() != expected.strides:
        return True
    return subclass_of(tangent) != expected.subclass
