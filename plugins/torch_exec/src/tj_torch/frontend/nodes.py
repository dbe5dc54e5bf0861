"""What the nodes of an FX graph say: who takes what, and the tags that the program puts."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any

import torch
from tj_core import tag as tag_function
from tj_core.proxy import Proxy, SymDim, TensorProxy
from tj_core.source import Source
from tj_core.tags import NO_TAGS, TagRegistry, TagSet

from tj_torch.dialect.shapeenv import is_symbolic
from tj_torch.frontend.sources import node_source

__all__ = ["input_value", "outdated", "tagged_names", "takers", "user_tags"]


def takers(node: torch.fx.Node) -> dict[int, torch.fx.Node]:
    """The nodes that take one item of what ``node`` returns, by the item's index."""
    users = (u for u in node.users if u.target is operator.getitem and u.args[0] is node)
    return {u.args[1]: u for u in users if isinstance(u.args[1], int)}


def input_value(node: torch.fx.Node, example: Any) -> Any:
    """What an input's metadata is read from.

    The captured fake is spoiled where the program changes metadata in place, so a static tensor
    is read from the example itself; sizes that are symbols only the fake knows.
    """
    fake = node.meta.get("example_value", example)
    if not isinstance(fake, torch.Tensor) or not isinstance(example, torch.Tensor):
        return fake
    symbolic = any(isinstance(n, torch.SymInt) for n in (*fake.shape, *_strides(fake)))
    return fake if symbolic else example


def outdated(
    proxies: Iterable[Proxy], graph: torch.fx.GraphModule, examples: Iterable[Any]
) -> bool:
    """Whether a size of an input, a symbol in ``proxies``, has been decided on since then."""
    nodes = (n for n in graph.graph.nodes if n.op == "placeholder")
    for p, node, example in zip(proxies, nodes, examples, strict=False):
        if isinstance(p, TensorProxy):
            now = input_value(node, example)
            pairs = zip((*p.shape, *p.strides), (*now.shape, *_strides(now)), strict=True)
            if any(isinstance(dim, SymDim) and not is_symbolic(size) for dim, size in pairs):
                return True
    return False


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def _tagged(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose value a ``tj.tag`` call tags."""
    while node.target is tag_function:
        inner = node.args[0]
        assert isinstance(inner, torch.fx.Node)
        node = inner
    return node


def tagged_names(graph: torch.fx.GraphModule) -> dict[torch.fx.Node, str]:
    """The names users gave tagged values: in ``total = tj.tag(x + y, "SAVE")`` the tag has it."""
    tags = [n for n in graph.graph.nodes if n.target is tag_function]
    return {_tagged(n): n.name for n in tags if not re.fullmatch(r"tag(_\d+)?", n.name)}


def user_tags(graph: torch.fx.GraphModule, registry: TagRegistry) -> dict[Any, TagSet]:
    """The tags that ``tj.tag`` calls put on the values of other nodes.

    :raises TagError: for an unknown tag, or one that values cannot have, at the user's line.
    """
    found: dict[Any, TagSet] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is not tag_function:
            continue
        name = node.args[1] if len(node.args) > 1 else node.kwargs["name"]
        source: Source | None = node_source(node)
        registry.require(str(name), "proxy", source)
        target = _tagged(node)
        found[target] = registry.merge(found.get(target, NO_TAGS), TagSet([str(name)]), source)
    return found
