"""What nodes came to when they were captured, and the values that stand for that in a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tj_core.extend import NO_TAGS, BoundSymbol, CaptureError, Namer, OpaqueProxy, TagSet

from tj_torch.capture.nodes import takers, takes_values
from tj_torch.ops import convert
from tj_torch.ops.service import TorchDialects
from tj_torch.ops.sizes.shape_env import plain
from tj_torch.torch_private.runtime import pytree

__all__ = ["NodeValues"]


class NodeValues:
    """Makes values of nodes: names by ``namer``, or as the user has ``renamed`` them, with
    ``tags`` that the user put."""

    dialects: TorchDialects
    namer: Namer
    tags: dict[torch.fx.Node, TagSet]
    renamed: dict[torch.fx.Node, str]

    def proxy(self, name: str, value: Any, node: torch.fx.Node | None = None) -> Any:
        """A stand-in for ``value`` (a tensor, a symbolic number, an opaque object)."""
        tags = self.tags.get(node, NO_TAGS) if node is not None else NO_TAGS
        sizes = self.dialects.sizes
        if isinstance(value, torch.Tensor):
            return convert.tensor_proxy(name, value, sizes.dim).replace(tags=tags)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return sizes.number(convert.number_proxy(name, value)).replace(tags=tags)
        return OpaqueProxy(name, f"{type(value).__module__}.{type(value).__qualname__}", tags=tags)

    def example(self, node: torch.fx.Node) -> Any:
        """What ``node`` came to when it was captured: a fake tensor, a number, a tree; or None."""
        return node.meta.get("example_value")

    def says(self, node: torch.fx.Node) -> bool:
        """Whether it is known what ``node`` came to; None is a value, too."""
        return "example_value" in node.meta

    def changes_state(self, call: BoundSymbol, node: torch.fx.Node) -> bool:
        """Whether ``call`` neither takes nor makes values: it is there for what it does elsewhere.

        Such a call must not be expanded: that would do it, here and now.
        """
        made = pytree.tree_leaves(self.example(node))
        values = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
        return not any(isinstance(v, values) for v in made) and not takes_values(call)

    def output_names(self, node: torch.fx.Node, single: bool) -> Callable[[int], str]:
        """One output has the node's name; several have the names of the nodes that take them."""
        if single:
            return lambda _: self.namer(self.renamed.get(node, node.name))
        taken_by = takers(node)
        return lambda i: self.namer(taken_by[i].name if i in taken_by else f"{node.name}_{i}")

    def captured(self, call: BoundSymbol, node: torch.fx.Node) -> Any:
        """The outputs of ``call``, with their metadata from the capture.

        :raises CaptureError: if capture does not say what they are.
        """
        value = self.example(node)
        if value is None and node.users and not self.says(node):
            if isinstance(node.target, type):  # an object that only goes into other calls
                made = node.target
                path = f"{made.__module__}.{made.__qualname__}"
                return OpaqueProxy(self.output_names(node, single=True)(0), path)
            raise CaptureError(
                f"capture does not say what {call.symbol} returns", source=call.source
            )
        count = iter(range(1 << 30))
        name = self.output_names(node, isinstance(value, torch.Tensor))

        def output(leaf: Any) -> Any:
            if isinstance(known := plain(leaf), bool | int | float | str | None):
                return known
            return self.proxy(name(next(count)), leaf)

        return convert.to_core_tree(value, output)
