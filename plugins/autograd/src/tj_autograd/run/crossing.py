"""Conversion of tangents and saved tensors to the form that a backward was compiled for.

A kernel reads memory by its compile-time strides: a tensor with other strides, another data type,
or its negative bit set would be misread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tj_core.extend import (
    Proxy,
    SymDim,
    TensorProxy,
    evaluate_size,
    may_overlap,
    size_symbols,
)
from tj_torch.extend import device_to_torch, dtype_to_torch, set_conj, set_neg
from tj_torch.internal import Form, form_of

from tj_autograd.run.tangents import is_of_other_class

__all__ = [
    "as_in_eager",
    "has_layout",
    "has_memory",
    "is_unlike",
    "laid_out",
    "unpacked",
    "zeros",
]


def has_memory(tangent: torch.Tensor | None) -> bool:
    """Check that a program can take ``tangent``: it is no sparse, quantized or batched tensor."""
    return tangent is None or form_of(tangent) is not Form.OTHER


def is_unlike(
    tangent: torch.Tensor | None, expected: TensorProxy | None, shape: torch.Size
) -> bool:
    """Check that ``tangent`` differs from ``expected``, of ``shape``, in type, shape or class.

    Autograd itself passes no such tangent; hooks, and callers of a node, may.
    """
    if tangent is None or expected is None or expected.subclass is not None:
        return is_of_other_class(tangent, expected)
    other_type = tangent.dtype is not dtype_to_torch(expected.dtype)
    return other_type or tangent.shape != shape or is_of_other_class(tangent, expected)


def laid_out(tensor: torch.Tensor, expected: TensorProxy) -> torch.Tensor:
    """``tensor`` with the strides and bits that the backward was compiled for, copied if need be.

    A tensor subclass has them already, see `is_of_other_class`.
    """
    if expected.subclass is not None:
        return tensor
    strides = _strides(expected, tensor.shape)
    if tensor.stride() == strides and form_of(tensor) is not Form.BITS and not expected.flags:
        return tensor
    return _copied(tensor, expected)


def has_layout(gradient: TensorProxy) -> bool:
    """Check that `as_in_eager` can copy to the strides of ``gradient``; a sparse one has none."""
    if gradient.layout != "strided":
        return False
    fixed = all(isinstance(n, int) for n in (*gradient.shape, *gradient.strides))
    if not fixed or gradient.subclass is not None or gradient.flags:
        return False
    pairs = zip(gradient.shape, gradient.strides, strict=True)
    return not may_overlap(gradient.replace(shape=tuple(1 if t == 0 else n for n, t in pairs)))


def as_in_eager(gradient: torch.Tensor, expected: TensorProxy) -> torch.Tensor:
    """``gradient`` with the strides of ``expected``; where these are zero, the elements are one."""
    if gradient.stride() == expected.strides:
        return gradient
    pairs = zip(gradient.shape, expected.strides, strict=True)
    part = gradient[tuple([slice(1 if step == 0 else n) for n, step in pairs])]
    return _empty(expected, part.shape).copy_(part).expand(gradient.shape)


def unpacked(values: Sequence[Any], saved: Sequence[Proxy]) -> list[Any]:
    """``values`` in the form in which they were saved: hooks may unpack them in another.

    :raises RuntimeError: if one has another shape, or is on another device.
    """
    return [
        _as_saved(v, p) if isinstance(p, TensorProxy) and _is_dense(p) else v
        for v, p in zip(values, saved, strict=True)
    ]


def zeros(expected: TensorProxy, shape: torch.Size) -> torch.Tensor:
    """Zeros in place of a tangent that does not exist."""
    return _empty(expected, shape).zero_()


def _as_saved(value: torch.Tensor, p: TensorProxy) -> torch.Tensor:
    """``value`` in the form of ``p``.

    :raises RuntimeError: if it has another shape, or is on another device.
    """
    sizes = [n if isinstance(n, int) else m for n, m in zip(p.shape, value.shape, strict=False)]
    # A hook may return any tensor; kernels would read past its memory.
    if len(p.shape) != value.dim() or tuple(sizes) != value.shape:
        raise RuntimeError(UNPACKED.format("shape", list(value.shape), list(p.shape)))
    if value.device != device_to_torch(p.device):
        raise RuntimeError(UNPACKED.format("device", value.device, p.device))
    plain = form_of(value) in (Form.PLAIN, Form.WRAPPED) and not p.flags
    if plain and value.dtype is dtype_to_torch(p.dtype):
        return laid_out(value, p)
    return _copied(value, p)


UNPACKED = "a hook on saved tensors has unpacked one of another {}: {}, where {} was packed"


def _is_dense(p: TensorProxy) -> bool:
    return p.layout == "strided" and p.subclass is None


def _copied(tensor: torch.Tensor, expected: TensorProxy) -> torch.Tensor:
    """A copy of ``tensor`` with the strides, the type and the bits of ``expected``."""
    made = _empty(expected, tensor.shape).copy_(tensor)
    if "conj" in expected.flags:
        # The bit says that the memory holds the conjugate: set on it, the value is the same again.
        made.copy_(made.conj())
        set_conj(made)
    if "neg" in expected.flags:
        made.neg_()
        set_neg(made)
    return made


def _empty(expected: TensorProxy, shape: torch.Size) -> torch.Tensor:
    return torch.empty_strided(
        shape,
        _strides(expected, shape),
        dtype=dtype_to_torch(expected.dtype),
        device=device_to_torch(expected.device),
    )


def _strides(expected: TensorProxy, shape: torch.Size) -> tuple[int, ...]:
    """Strides of ``expected`` for ``shape``; if that does not tell their symbols, dense ones in the
    order of their hints.
    """
    if all(isinstance(t, int) for t in expected.strides):
        return expected.strides  # type: ignore[return-value]
    pairs = zip(expected.shape, shape, strict=True)
    known = {n.name: size for n, size in pairs if isinstance(n, SymDim)}
    if all(
        isinstance(t, int) or known.keys() >= set(size_symbols(t.name)) for t in expected.strides
    ):
        return tuple(
            t if isinstance(t, int) else int(evaluate_size(t.name, known.__getitem__))
            for t in expected.strides
        )
    hints = [t if isinstance(t, int) else t.hint or 1 for t in expected.strides]
    found = [0] * len(shape)
    step = 1
    for i in sorted(reversed(range(len(shape))), key=lambda i: hints[i]):
        found[i] = step
        # The strides of a tensor without elements are those with sizes of one.
        step *= max(shape[i], 1)
    return tuple(found)
