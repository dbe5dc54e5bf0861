"""Tensors of one number in graphs: their numbers are rounded as PyTorch's kernels round them.

A constant in a kernel of Inductor has all digits that the program gives, whatever its data type,
and so has what is computed of constants: ``torch.full((2,), 0.1).double()`` is 0.1 there, where
PyTorch has 0.10000000149.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["round_constants"]

aten = torch.ops.aten

NUMBERS = {
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.fill.Scalar: 1,
    aten.new_full.default: 2,
    aten.scalar_tensor.default: 0,
}
"""Operators that fill a tensor with a number, and its place among their arguments."""

CONVERSION = torch.ops.prims.convert_element_type.default


@dataclass(frozen=True, slots=True)
class Uniform:
    """A tensor of one number: an element, and the argument ``size`` of what would fill it."""

    element: torch.Tensor
    size: Any


def round_constants(graph: torch.fx.Graph) -> None:
    """Round the numbers that fill tensors, and fill floats that are computed of these alone."""
    found: dict[Any, Uniform] = {}
    for node in list(graph.nodes):
        like = node.meta.get("val")
        if node.op != "call_function" or not isinstance(like, torch.Tensor) or like.is_complex():
            continue
        place = NUMBERS.get(node.target)
        if place is not None and isinstance(node.args[place], (int, float)):
            element = torch.full((), node.args[place], dtype=like.dtype)
            node.update_arg(place, element.item())
            found[node] = Uniform(element, _size(node, like))
        elif _is_pointwise(node.target) and like.is_floating_point():
            _fold(graph, node, like, found)


def _fold(
    graph: torch.fx.Graph, node: torch.fx.Node, like: torch.Tensor, found: dict[Any, Uniform]
) -> None:
    """Fill the result of ``node``, if all its tensors are ``found``."""
    read = node.all_input_nodes
    if not read or any(given not in found for given in read):
        return
    size = found[read[0]].size if len(read) == 1 else _size(node, like)
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda given: found[given].element)
    element = node.target(*args, **kwargs)  # type: ignore[operator]
    if size is None or element.dtype != like.dtype:
        return
    with graph.inserting_before(node):
        options: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "pin_memory": False}
        filled = graph.call_function(aten.full.default, (size, element.item()), options)
    filled.meta.update(node.meta)
    node.replace_all_uses_with(filled)
    found[filled] = Uniform(element, size)


def _size(node: torch.fx.Node, like: torch.Tensor) -> Any:
    """The size of what ``node`` makes; None if it has symbols of unknown names, or gaps."""
    if node.target is aten.full.default:
        return node.args[0]
    fixed = all(isinstance(n, int) for n in like.shape)
    return list(like.shape) if fixed and like.is_contiguous() else None


def _is_pointwise(operator: Any) -> bool:
    return operator is CONVERSION or torch.Tag.pointwise in getattr(operator, "tags", ())
