"""Layouts of images in a graph with convolutions.

On CPUs, Inductor lays out images in channels_last where convolutions read or write them, and with
them all values of four dimensions that lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from tj_inductor.adapter.calls import BMM, CONVOLUTION, declared_call, stands_for
from tj_inductor.adapter.names import IMAGES
from tj_inductor.adapter.replacing import Replacement

__all__ = ["BACKWARD", "has_images", "is_of_images", "join_by_pixels", "layouts_of_images"]

BACKWARD = torch.ops.aten.convolution_backward.default


def is_of_images(operator: Any) -> bool:
    """Test for operators whose results have the layout that Inductor chooses for the arguments."""
    tags = getattr(operator, "tags", ())
    return operator in (CONVOLUTION, BACKWARD) or torch.Tag.flexible_layout in tags


def has_images(graph: torch.fx.GraphModule) -> bool:
    """Test for calls for which Inductor has to be told to use channels_last: gradients of
    convolutions, and other executors' calls on images.

    On CPUs it is its choice for convolutions, and it does not look for these: what they get it
    copies, gradients into the order of dimensions that the gradient of the weight has.
    """
    called = [n for n in graph.graph.nodes if CONVOLUTION is stands_for(n) or n.target is BACKWARD]
    found = [node.args[0].meta["val"] for node in called]
    return bool(found) and all(value.device.type == "cpu" for value in found) and _uses_onednn()


def _uses_onednn() -> bool:
    return bool(torch.backends.mkldnn.enabled) and torch.backends.mkldnn.is_available()


def join_by_pixels(graph: torch.fx.GraphModule, visible: Collection[int]) -> None:
    """Let `cat` write its result in channels_last where a convolution reads it.

    Inductor lays it out as its arguments are, and copies the whole: of skipped connections, most
    of the time between convolutions. ``visible`` are places of outputs that have the strides that
    the program declares.
    """
    if not _uses_onednn():
        return
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    seen = {output.args[0][place] for place in visible}
    wanted = _leading(graph.graph)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        value = node.meta["val"]
        if node not in wanted or node in seen or value.dim() != 4:
            continue
        if value.is_contiguous() and value.device.type == "cpu":
            with graph.graph.inserting_before(node):
                parts = [_by_pixels(graph.graph, part) for part in node.args[0]]
            with graph.graph.inserting_after(node):
                whole = graph.graph.call_function(declared_call(), (node,))
            whole.meta["val"] = value
            node.replace_all_uses_with(whole, lambda user, made=whole: user is not made)
            node.args = (parts, *node.args[1:])
            node.meta["val"] = value.contiguous(memory_format=torch.channels_last)


def _leading(graph: torch.fx.Graph) -> set[Any]:
    """Images that convolutions read, and those of which these are computed pixel by pixel.

    Transposed convolutions are left out: of images in channels_last, Inductor expects a contiguous
    result for some sizes, and PyTorch returns another.
    """
    found: set[Any] = set()
    for node in reversed(graph.nodes):
        target = stands_for(node) or node.target
        if target is CONVOLUTION:
            if node.target is not CONVOLUTION or not node.args[6]:
                found.add(node.args[0])
        elif node in found and torch.Tag.pointwise in getattr(target, "tags", ()):
            found.update(node.all_input_nodes)
    return found


def _by_pixels(graph: torch.fx.Graph, part: torch.fx.Node) -> torch.fx.Node:
    by_pixels: dict[str, Any] = {"memory_format": torch.channels_last}
    made = graph.call_function(torch.ops.aten.clone.default, (part,), by_pixels)
    made.meta["val"] = part.meta["val"].clone(**by_pixels)
    return made


MOVING = (
    torch.ops.aten.permute.default,
    torch.ops.aten.transpose.int,
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default,
)
"""Operators whose result has other dimensions, or the same ones in another order."""


def _by_layout(node: torch.fx.Node) -> Any:
    """The operator by which layouts are chosen around ``node``; None for its own."""
    return BMM if node.target in MOVING else stands_for(node)


def _preferring(own: Callable[..., Any]) -> Callable[..., Any]:
    """``find_nodes_prefer_channels_last``, which knows the operators that calls stand for.

    ``own`` is Inductor's method. It knows convolutions, and that no layout crosses a product of
    stacks of matrices: scores of attention, which have four dimensions, are no images. No more are
    images whose dimensions were moved, as for a layer norm of channels or a linear layer.
    """

    def find_nodes_prefer_channels_last(self: Any) -> Any:
        nodes = {node: _by_layout(node) for node in self.module.graph.nodes}
        before = [(node, node.target) for node, target in nodes.items() if target]
        for node, _ in before:
            node.target = nodes[node]
        try:
            return own(self)
        finally:
            for node, target in before:
                node.target = target

    return find_nodes_prefer_channels_last


layouts_of_images = Replacement(
    IMAGES, "GraphLowering", "find_nodes_prefer_channels_last", _preferring
).block
"""A block in which layouts are chosen with regard to calls of other executors."""
