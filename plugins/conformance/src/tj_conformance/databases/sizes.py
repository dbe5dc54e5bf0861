"""Comparison of expansions' metadata with eager's results, where sizes are expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tj_core.extend import Dim, NumberProxy, TensorProxy, evaluate_size, leaves
from tj_torch.extend import tensor_proxy
from tj_torch.internal import to_core

__all__ = ["actual_sizes", "same_metadata", "symbol_values"]


def symbol_values(outputs: Any, results: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all symbols: those in ``known``, and those that the call made, read off
    ``results``.

    ``outputs`` are an expansion's, ``results`` eager's.
    """
    values = dict(known)
    for mine, theirs in zip(leaves(outputs), leaves(results), strict=True):
        if isinstance(mine, NumberProxy):
            values.setdefault(mine.expr, theirs)
        elif isinstance(mine, TensorProxy):
            for dim, size in zip(mine.shape, theirs.shape, strict=True):
                values.setdefault(str(dim), size)
    return values


def actual_sizes(dims: tuple[Dim, ...], value: Callable[[str], Any]) -> tuple[int, ...]:
    """Sizes or strides as numbers, given the symbols' values."""
    return tuple(d if isinstance(d, int) else evaluate_size(d.name, value) for d in dims)


def same_metadata(mine: Any, theirs: Any, values: Mapping[str, Any]) -> bool:
    """Check that an output has eager's metadata for these values of symbols.

    Strides of an empty tensor with symbolic sizes are not compared.
    """
    value = values.__getitem__
    if isinstance(mine, NumberProxy):
        made = values[mine.expr] if mine.expr in values else evaluate_size(mine.expr, value)
        return bool(made == theirs)
    if not isinstance(theirs, torch.Tensor):
        return bool(mine == to_core(theirs))
    if not isinstance(mine, TensorProxy):
        return False
    real = tensor_proxy(mine.name, theirs)
    strides: tuple[Dim, ...] = actual_sizes(mine.strides, value)
    if theirs.numel() == 0 and any(not isinstance(d, int) for d in mine.shape):
        strides = real.strides
    return mine.replace(shape=actual_sizes(mine.shape, value), strides=strides).same_meta(real)
