"""A region as the FX graph that Inductor compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tj_core.extend import (
    Constant,
    Dim,
    FusionRegion,
    NumberProxy,
    Proxy,
    TensorProxy,
    map_tree,
)
from tj_torch.extend import RunSymbols, device_to_torch, dtype_to_torch

__all__ = ["example_inputs", "interpreter"]


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


def interpreter(region: FusionRegion) -> Callable[..., tuple[Any, ...]]:
    """A function that runs the calls of ``region`` one by one, to be traced."""
    names = [p.name for p in region.inputs]
    steps = [(region.resolve(call), call) for call in region.body.calls]

    def run(*inputs: Any) -> tuple[Any, ...]:
        values: dict[str, Any] = dict(zip(names, inputs, strict=True))

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Proxy):
                return values[leaf.name]
            return leaf.value if isinstance(leaf, Constant) else leaf

        for function, call in steps:
            args, kwargs = map_tree(value, call.args), map_tree(value, call.kwargs)
            _bind(call.outputs, function(*args, **dict(kwargs)), values)
        return tuple(values[p.name] for p in region.outputs)

    return run


def _bind(outputs: Any, result: Any, values: dict[str, Any]) -> None:
    """Give the values of ``result`` the names that they have in ``outputs``."""
    if isinstance(outputs, tuple | list):
        for output, item in zip(outputs, result, strict=True):
            _bind(output, item, values)
    elif isinstance(outputs, Proxy):
        values[outputs.name] = result
