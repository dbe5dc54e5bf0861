"""Strides of ``x[i, j]`` for tensors of places, which are those of the places.

Fake kernels look at ``x`` alone: ``table[i.T]`` is transposed, and they say that it is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tj_torch.ops.fakes.layouts import (
    Layout,
    Strides,
    is_decidable,
    layout_of,
    like,
    of_operands,
    viewed,
)

__all__ = ["of_index"]


def of_index(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """The strides of ``aten.index(x, places)``, as its kernel finds them on the CPU.

    The kernel reads ``x`` with steps of zero along the dimensions of the places.
    """
    source, places = args
    given = [i for i in places if i is not None]
    masks = any(i.dtype in (torch.bool, torch.uint8) for i in given)
    # The length of a vector does not matter, which may depend on data.
    known = all(map(is_decidable, ((result if source.ndim == 1 else source), *given)))
    if masks or not known or all(i.ndim < 2 for i in given):
        return tuple(result.stride())
    indexed = [d for d, i in enumerate(places) if i is not None]
    others = [d for d in range(source.ndim) if d not in indexed]
    beside = indexed == [*range(indexed[0], indexed[-1] + 1)]
    before = indexed[0] if beside else 0  # places with a gap between them come first
    new = result.ndim - len(others)
    after = len(others) - before
    steps = [source.stride(d) for d in others]
    read = Layout(result.shape, (*steps[:before], *[0] * new, *steps[before:]))
    block = result.shape[before : before + new]
    layouts = [_padded(_places(i, block), before + new, after) for i in given]
    return of_operands([read, *layouts], result.shape)


def _places(place: torch.Tensor, block: Sequence[Any]) -> Layout:
    """The layout of places: those of other integers are copied, as many as there are results."""
    if place.dtype == torch.int64:
        return layout_of(place)
    whole = layout_of(torch.ops.aten.expand.default(place, block))
    return Layout(whole.shape, like(whole))


def _padded(place: Layout, inner: int, after: int) -> Layout:
    """The layout of places that end with dimension ``inner``, with ones around them."""
    ahead = inner - len(place.shape)
    shape = (*[1] * ahead, *place.shape, *[1] * after)
    strides = (*[0] * ahead, *place.strides, *[0] * after)
    return Layout(shape, viewed(shape, strides, (1, *place.strides)[-1]))
