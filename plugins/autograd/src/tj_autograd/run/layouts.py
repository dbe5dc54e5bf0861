"""Layouts of tangents, which choose the backward program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tj_core.extend import Dim, Proxy, TensorProxy, is_subclass
from tj_torch.internal import is_sized, row_major

from tj_autograd.joint.build import DEFAULT_LAYOUT

__all__ = ["default_layout", "layout_of"]


def default_layout(tangent: Proxy) -> Any:
    """Layout of a tangent in the first backward program."""
    assert isinstance(tangent, TensorProxy)
    has_usual = is_sized(tangent) or is_subclass(tangent)
    return DEFAULT_LAYOUT if has_usual else tangent.strides


def layout_of(expected: Proxy) -> Callable[[torch.Tensor], Any]:
    """Make the function that computes the layout of a tangent for ``expected``."""
    if is_subclass(expected):
        return _usual
    assert isinstance(expected, TensorProxy)
    return _Symbolic(expected) if is_sized(expected) else torch.Tensor.stride


def _usual(_: torch.Tensor) -> Any:
    return DEFAULT_LAYOUT


class _Symbolic:
    """The layout of a tangent for ``expected``, which has symbolic sizes, without their values.

    Known are the default layout, dense tensors with their dimensions in another order in memory,
    and an expanded scalar, as the gradient of a sum is; all others count as the default.
    """

    def __init__(self, expected: TensorProxy) -> None:
        self.shape = expected.shape
        self.usual = _order([*map(_hint, expected.shape)], [*map(_hint, expected.strides)])
        self.known: dict[tuple[int, ...], tuple[Dim, ...]] = {}

    def __call__(self, tangent: torch.Tensor) -> Any:
        if tangent.numel() < 2:
            return DEFAULT_LAYOUT
        shape, strides = tangent.shape, tangent.stride()
        if not any([step for n, step in zip(shape, strides, strict=True) if n > 1]):
            return strides
        order = _order(shape, strides)
        if order is None or self.usual is None or len(shape) != len(self.shape):
            return DEFAULT_LAYOUT
        if order == tuple([i for i in self.usual if shape[i] != 1]):
            return DEFAULT_LAYOUT
        if order not in self.known:
            self.known[order] = self.strides(order)
        return self.known[order]

    def strides(self, order: tuple[int, ...]) -> tuple[Dim, ...]:
        """Strides of a dense tensor whose dimensions, the outermost first, are in ``order``."""
        every = [*(i for i in range(len(self.shape)) if i not in order), *order]
        found = dict(zip(every, row_major([self.shape[i] for i in every]), strict=True))
        return tuple(found[i] for i in range(len(every)))


def _hint(n: Dim) -> int:
    return n if isinstance(n, int) else n.hint or 0


def _order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions of a dense tensor but those of size one, the outermost first; else None."""
    order = sorted([i for i, n in enumerate(shape) if n != 1], key=lambda i: -strides[i])
    step = 1
    for i in reversed(order):
        if strides[i] != step:
            return None
        step *= shape[i]
    return tuple(order)
