"""Shapes as PyTorch's kernels compute them, where its fake kernels say others."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tj_torch.ops.fakes.layouts import Strides, same
from tj_torch.torch_private.eager import embedding_bag, embedding_bag_without_gradient
from tj_torch.torch_private.ops import is_known
from tj_torch.torch_private.runtime import unsafe_view

__all__ = ["of_kernels"]

_SUM, _MAX = 0, 2
"""Modes of bags of embeddings (`EmbeddingBagMode` in ATen/native/EmbeddingBag.h)."""


def of_kernels(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Result of ``func(*args)`` on fake tensors, with the shapes of kernels."""
    rule = _RULES.get(func)
    return result if rule is None or result is NotImplemented else rule(args, result)


def _of_bags(args: tuple[Any, ...], result: Any) -> Any:
    """The places of what a sum adds in bfloat16: none, as in other types, where it is fast."""
    weight, _, offsets, _, mode, _, scale, _, padding = args + _DEFAULTS[len(args) :]
    rows, places, *rest = result
    fast = (
        weight.dtype == torch.bfloat16
        and mode == _SUM
        and offsets.device.type == "cpu"
        and weight.stride(1) == 1
        and padding < 0
        and (scale is None or scale.stride(0) == 1)
    )
    return (rows, places.new_empty(0) if fast else places, *rest)


def _of_bags_alone(args: tuple[Any, ...], result: Any) -> Any:
    """Sizes of bags where no gradient is asked for: those of a sum are not computed.

    They have the shape of the offsets then, and so have the places of maxima, which there are none
    of. The fake kernel has it so for averages and maxima, and the places of another shape (up to
    2.15).
    """
    rows, places, sizes, maxima = _of_bags(args, result)
    offsets, mode = args[2], (args + _DEFAULTS[len(args) :])[4]
    if offsets.device.type == "cpu":
        sizes = sizes.new_empty(offsets.shape if mode == _SUM else rows.shape[:1])
        maxima = maxima if mode == _MAX else maxima.new_empty(sizes.shape)
    return rows, places, sizes, maxima


def _of_neighbours(args: tuple[Any, ...], result: Any) -> Any:
    """Places and counts that nobody asks for: none, of a vector along dimension 0.

    The kernel takes this for a vector without a dimension (`unique_consecutive_cpu` in
    ATen/native/Unique.cpp), but not dimension -1.
    """
    vector, places, counts, dim = args + (False, False, None)[len(args) - 1 :]
    if dim != 0 or vector.ndim != 1 or vector.device.type != "cpu":
        return result
    first, *others = result
    asked = zip(others, (places, counts), strict=True)
    return first, *(value if wanted else value.new_empty(0) for value, wanted in asked)


def _of_view(args: tuple[Any, ...], view: torch.Tensor) -> torch.Tensor:
    """The sizes that were asked for: of merged dimensions, the fake kernel has the product.

    Where there are symbols, ``(64 // n) * (64 // (64 // n))`` may be 64, and no text shows it.
    """
    if len(args) != 2 or all(isinstance(n, int) for n in (*args[0].shape, *args[1])):
        return view
    source, shape = args
    pairs = zip(shape, view.shape, strict=True)
    sizes = [asked if is_known(asked >= 0) else found for asked, found in pairs]
    strides: Strides = view.stride()
    if all(map(same, _dense(source.shape), source.stride())):  # two texts for the same strides
        strides = min(_dense(sizes), strides, key=lambda found: len(str(found)))
    if str((sizes, strides)) == str(([*view.shape], view.stride())):
        return view
    return torch.ops.aten.as_strided.default(view, sizes, strides, view.storage_offset())  # type: ignore[no-any-return]


def _dense(shape: Sequence[Any]) -> Strides:
    """Strides of contiguous memory as PyTorch writes them, where a size may be zero."""
    sizes = [torch.sym_max(size, 1) for size in shape[:0:-1]]
    return tuple(itertools.accumulate(sizes, operator.mul, initial=1))[::-1]


_DEFAULTS: tuple[Any, ...] = (None, None, None, False, _SUM, False, None, False, -1)
"""Arguments of a bag of embeddings that a call may leave out."""

_RULES: dict[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    embedding_bag: _of_bags,
    embedding_bag_without_gradient: _of_bags_alone,
    torch.ops.aten.unique_consecutive.default: _of_neighbours,
    torch.ops.aten.view.default: _of_view,
    unsafe_view: _of_view,
}
