"""A region as the FX graph that Inductor compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tj_core.extend import Constant, FusionRegion, Proxy, TensorProxy, map_tree
from tj_torch.extend import device_to_torch, dtype_to_torch

__all__ = ["example_inputs", "interpreter"]


def example_inputs(region: FusionRegion) -> list[torch.Tensor]:
    """Tensors with the metadata of the region's inputs; fake ones, inside a fake tensor mode."""
    return [_example(p) for p in region.inputs]


def _example(p: Proxy) -> torch.Tensor:
    assert isinstance(p, TensorProxy)
    shape, strides = map(_numbers, (p.shape, p.strides))
    device = device_to_torch(p.device)
    return torch.empty_strided(shape, strides, dtype=dtype_to_torch(p.dtype), device=device)


def _numbers(dims: Sequence[Any]) -> list[int]:
    assert all(isinstance(n, int) for n in dims)
    return list(dims)


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
