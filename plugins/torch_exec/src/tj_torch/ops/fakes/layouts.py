"""Layouts that PyTorch gives to results of elementwise kernels, from the layouts of operands.

Sizes may have symbols. A comparison of them that is not known for all values of the symbols is
decided by the values at hand, with a guard: a size that may be one has a program of its own for it.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tj_torch.torch_private import ops as private

__all__ = [
    "Layout",
    "Strides",
    "contiguous",
    "filled",
    "is_decidable",
    "is_long",
    "is_size",
    "layout_of",
    "like",
    "of_operands",
    "same",
    "viewed",
]

Strides = tuple[Any, ...]


class Layout(NamedTuple):
    """Sizes and strides of a tensor; of a number they are empty."""

    shape: Sequence[Any]
    strides: Strides


def layout_of(value: Any) -> Layout:
    """The layout of a tensor or a number."""
    if isinstance(value, torch.Tensor):
        return Layout(value.shape, tuple(value.stride()))
    return Layout((), ())


def is_decidable(tensor: torch.Tensor) -> bool:
    """Test for a tensor on the CPU whose sizes do not depend on data."""
    if tensor.device.type != "cpu":
        return False
    symbols = [n for n in (*tensor.shape, *tensor.stride()) if not isinstance(n, int)]
    return not symbols or not private.depend_on_data(symbols)


def _holds(comparison: Any) -> bool:
    """Decide a comparison of sizes, with a guard if symbols can make it true and false."""
    return comparison if isinstance(comparison, bool) else bool(comparison)


def same(size: Any, other: Any) -> bool:
    """Tell whether two sizes are equal for all values of symbols, with no guard."""
    if isinstance(size, int) and isinstance(other, int):
        return size == other
    return private.is_known(size == other)


def is_size(size: Any, value: int) -> bool:
    """Compare a size with a number; a symbol equals none, and gets no guard."""
    return isinstance(size, int) and size == value


def is_long(size: Any) -> bool:
    """Test for a size that is neither 0 nor 1 for any value of symbols, with no guard."""
    return size > 1 if isinstance(size, int) else private.is_known(size > 1)


def filled(shape: Sequence[Any], order: Sequence[int]) -> Strides:
    """The strides of what fills a block of memory, its dimensions in ``order``."""
    sizes = [shape[d] for d in order[:-1]]
    strides = itertools.accumulate(sizes, operator.mul, initial=1)
    return tuple(stride for _, stride in sorted(zip(order, strides, strict=False)))


def viewed(shape: Sequence[Any], strides: Sequence[Any], last: Any) -> Strides:
    """The strides of a view: a dimension of size one goes on from the one after it.

    :param last: the stride of a last dimension of size one.
    """
    found = list(strides)
    for i in reversed([i for i, size in enumerate(shape) if is_size(size, 1)]):
        found[i] = shape[i + 1] * found[i + 1] if i + 1 < len(shape) else last
    return tuple(found)


def _ordered(shape: Sequence[Any], operands: Sequence[Strides]) -> list[int]:
    """The dimensions from the innermost to the outermost, as ``TensorIterator`` sorts them."""
    order = list(range(len(shape)))[::-1]
    for last in range(1, len(order)):
        place = last
        for before in range(last)[::-1]:
            inner, outer = order[before], order[place]
            compared = _compared(shape, operands, inner, outer)
            if compared < 0:
                break
            if compared > 0:
                order[before], order[place] = outer, inner
                place = before
    return order


def _compared(shape: Sequence[Any], operands: Sequence[Strides], inner: int, outer: int) -> int:
    """-1 if dimension ``inner`` stays inside of ``outer``, 1 if not, 0 if nothing tells."""
    for strides in operands:
        a, b = strides[inner], strides[outer]
        if _holds(a == 0) or _holds(b == 0):
            continue
        if _holds(a < b):
            return -1
        if _holds(a > b) or _holds(shape[inner] > shape[outer]):
            return 1
    return 0


def like(source: Layout) -> Strides:
    """The strides of ``empty_like``: those of a dense tensor, else dense ones in their order."""
    if _is_dense(source):
        return source.strides
    return filled(source.shape, _ordered(source.shape, [source.strides]))


def of_operands(operands: Sequence[Layout], shape: Sequence[Any]) -> Strides:
    """The strides of an elementwise result of ``shape``."""
    found = _of_alike(operands, shape)
    if found is not None:
        return found
    order = _ordered(shape, [_broadcast(a, shape) for a in operands])
    if order == [*range(len(shape))[::-1]]:
        return contiguous(shape)
    return filled(shape, order)


def _broadcast(operand: Layout, shape: Sequence[Any]) -> Strides:
    """The strides of an operand that is read with ``shape``."""
    new = len(shape) - len(operand.shape)
    pairs = zip(operand.shape, operand.strides, shape[new:], strict=True)
    own = (0 if _holds(n == 1) and not _holds(size == 1) else step for n, step, size in pairs)
    return (*[0] * new, *own)


def _of_alike(operands: Sequence[Layout], shape: Sequence[Any]) -> Strides | None:
    """The strides of a result whose operands have its shape and one layout; else None.

    Kernels look for this first, on devices that have data. Contiguous is who seems so: a dimension
    of size one may have any stride. The formulas of fake kernels keep that stride.
    """
    if any(len(a.shape) != len(shape) for a in operands):
        return None
    if not all(_holds(n == m) for a in operands for n, m in zip(a.shape, shape, strict=True)):
        return None
    if all(map(_is_contiguous, operands)):
        return contiguous(shape)
    if len(shape) == 4 and all(_fills(a, CHANNELS_LAST) for a in operands):
        return filled(shape, CHANNELS_LAST)
    first, *others = operands
    pairs = (zip(first.strides, a.strides, strict=True) for a in others)
    if all(_holds(n == m) for pair in pairs for n, m in pair) and _is_dense(first):
        return first.strides
    return None


CHANNELS_LAST = (1, 3, 2, 0)
"""Dimensions of images with the channels innermost, the innermost first."""


def contiguous(shape: Sequence[Any]) -> Strides:
    """Strides as of a new tensor: a size of zero counts as one."""
    sizes = [1 if is_size(n, 0) else n for n in shape]
    return filled(sizes, range(len(sizes))[::-1])


def _is_contiguous(layout: Layout) -> bool:
    return _fills(layout, range(len(layout.shape))[::-1]) or any(_holds(n == 0) for n in layout[0])


def _fills(layout: Layout, order: Sequence[int]) -> bool:
    """Test for dimensions that fill memory in ``order``; of size one they may have any stride."""
    expected = 1
    for d in order:
        size, stride = layout.shape[d], layout.strides[d]
        if same(stride, expected) or _holds(size == 1) or _holds(stride == expected):
            expected = expected * size if not same(size, 1) else expected
        else:
            return False
    return True


def _is_dense(layout: Layout) -> bool:
    """Test for a layout whose elements fill a block of memory, each once."""
    if any(_holds(n == 0) for n in layout.shape):
        return True
    long = [d for d, n in enumerate(layout.shape) if not _holds(n == 1)]

    def compare(a: int, b: int) -> int:
        return _sign(layout.strides[a], layout.strides[b])

    return _fills(layout, sorted(long, key=functools.cmp_to_key(compare)))


def _sign(a: Any, b: Any) -> int:
    return -1 if _holds(a < b) else int(_holds(a > b))
