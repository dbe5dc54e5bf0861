"""Made-up inputs of a region, for Inductor to trace it with."""

from __future__ import annotations

from typing import Any

import torch
from tj_core.extend import (
    Dim,
    FusionRegion,
    NumberProxy,
    Proxy,
    TensorProxy,
)
from tj_torch.extend import RunSymbols, device_to_torch, dtype_to_torch

__all__ = ["example_inputs"]


def example_inputs(region: FusionRegion, symbols: RunSymbols | None = None) -> list[Any]:
    """Values with the metadata of the region's inputs; fake ones, inside a fake tensor mode.

    Sizes are numbers of ``symbols``, if they are not fixed.
    """
    return [_example(p, symbols) for p in region.inputs]


def _example(p: Proxy, symbols: RunSymbols | None) -> Any:
    if isinstance(p, NumberProxy):
        assert symbols is not None and p.expr
        return symbols.number(p.expr, p.kind)
    assert isinstance(p, TensorProxy)
    shape, strides = ([_size(n, symbols) for n in dims] for dims in (p.shape, p.strides))
    device = device_to_torch(p.device)
    return torch.empty_strided(shape, strides, dtype=dtype_to_torch(p.dtype), device=device)


def _size(size: Dim, symbols: RunSymbols | None) -> Any:
    if isinstance(size, int):
        return size
    assert symbols is not None
    return symbols.number(size.name)
