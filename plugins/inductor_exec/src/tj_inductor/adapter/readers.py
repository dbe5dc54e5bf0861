"""Values that one operator reads in the end, which kernels do not write to memory.

Inductor writes an exponential, a logarithm, a sigmoid or a tanh to memory if two operators read it
(``StorageBox.should_realize_on_reuse`` in torch/_inductor/ir.py), and so a sum of many reads. Where
what the readers make meets again in one operator of the same elements, all of it is one loop, which
computes the value once: the gradient of ``silu`` reads a sigmoid in two places.

Values that are written get the strides that eager gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tj_inductor.adapter.names import READERS
from tj_inductor.adapter.replacing import Replacement

__all__ = ["in_one_loop", "meet"]

STEPS = 12
"""Number of operators between a value and the one where its readers meet; more are not followed."""


def _by_readers(own: Callable[..., Any]) -> Callable[..., Any]:
    """``should_realize_on_reuse`` of Inductor, which chooses the values to write to memory."""

    def should_realize_on_reuse(self: Any, users: int, **more: Any) -> bool:
        from tj_inductor.adapter.names import V

        chosen = bool(own(self, users, **more))
        node = V.graph.current_node
        # Other questions are about an argument of the operator, which is read at more places.
        mine = node is not None and node in getattr(self.data, "origins", ())
        # A text that repeats long texts becomes longer with each operator.
        if not chosen or not mine or len(node.users) != users:
            return chosen
        if not self.has_large_inner_fn() and meet(node):
            return False
        if node not in V.graph.nodes_prefer_channels_last:
            _lay_out(self, node)
        return True

    return should_realize_on_reuse


def _lay_out(box: Any, node: torch.fx.Node) -> None:
    """Write the value in ``box`` to memory with the strides of ``node``, if these are permuted.

    Inductor would choose them by what the value is computed from, and may take contiguous ones: a
    kernel for images in channels_last took three times as long.
    """
    from tj_inductor.adapter.names import FlexibleLayout

    value = node.meta["val"]
    strides = value.stride()
    fixed = all(isinstance(n, int) for n in (*value.shape, *strides))
    if not fixed or value.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(value):
        return
    box.realize()
    if isinstance(box.data.layout, FlexibleLayout):
        box.data.freeze_layout_with_exact_strides(strides)


def meet(node: torch.fx.Node) -> bool:
    """Check that all operators that depend on ``node`` lead to one, its only reader in the end.

    All operators on the way, and the last one, compute each element by itself.
    """
    shape = _shape(node)
    readers = list(node.users)
    for _ in range(STEPS):
        if shape is None or not all(_is_elementwise(n, shape) for n in readers):
            return False
        if len(readers) == 1:
            return True
        # Nodes are ordered as they run: the first one is not the last to be read.
        first = min(readers)
        readers = list(dict.fromkeys(n for n in (*readers, *first.users) if n is not first))
        if not first.users:
            return False
    return False


def _is_elementwise(node: torch.fx.Node, shape: torch.Size) -> bool:
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return (pointwise or node.target in CONVERSIONS) and _shape(node) == shape


CONVERSIONS = (torch.ops.prims.convert_element_type.default,)
"""Elementwise operators that PyTorch does not tag so."""


def _shape(node: torch.fx.Node) -> torch.Size | None:
    value = node.meta.get("val")
    return value.shape if isinstance(value, torch.Tensor) else None


in_one_loop = Replacement(READERS, "StorageBox", "should_realize_on_reuse", _by_readers).block
"""A block in which values stay in a kernel whose readers meet there, in all threads."""
