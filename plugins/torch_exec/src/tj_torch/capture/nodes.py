"""Facts of FX nodes: users, kinds of values, and the tags from ``tj.tag`` calls."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tj_core import tag as tag_function
from tj_core.extend import (
    NO_TAGS,
    BoundSymbol,
    NumberProxy,
    Proxy,
    Source,
    SymDim,
    TagRegistry,
    TagSet,
    TensorProxy,
    is_subclass,
    map_tree,
)

from tj_torch.capture.sources import node_source
from tj_torch.ops.sizes.shape_env import is_symbolic, number_text
from tj_torch.runtime.subclasses import is_wrapper
from tj_torch.torch_private.runtime import pytree

__all__ = [
    "as_given",
    "input_value",
    "is_record",
    "is_variable",
    "made_subclass",
    "makes_jagged",
    "outdated",
    "tagged",
    "tagged_names",
    "takers",
    "takes_subclass",
    "takes_values",
    "user_tags",
]


def takers(node: torch.fx.Node) -> dict[int, torch.fx.Node]:
    """Nodes that select one item of ``node``'s result, by the item's index."""
    # The node may be the index, too, as in `x[n]`.
    users = (u for u in node.users if u.target is operator.getitem and u.args[0] is node)
    return {u.args[1]: u for u in users if isinstance(u.args[1], int)}


def takes_values(call: BoundSymbol) -> bool:
    """Test for tensors or symbolic numbers among the arguments of ``call``."""
    return any(isinstance(p, TensorProxy | NumberProxy) for p in call.flat_args)


def takes_subclass(call: BoundSymbol) -> bool:
    """Test for a tensor subclass among the arguments of ``call``."""
    return any(map(is_subclass, call.flat_args))


def made_subclass(node: torch.fx.Node) -> type | None:
    """The tensor subclass with ``__torch_dispatch__`` that ``node`` returned, or None."""
    made = pytree.tree_leaves(node.meta.get("example_value"))
    found = (type(v) for v in made if isinstance(v, torch.Tensor) and is_wrapper(v))
    return next(found, None)


def makes_jagged(node: torch.fx.Node) -> bool:
    """Test for a node that returned a nested tensor; its call cannot be run again on fakes."""
    made = pytree.tree_leaves(node.meta.get("example_value"))
    return any(isinstance(v, torch.Tensor) and v.layout is torch.jagged for v in made)


def is_record(target: Any) -> bool:
    """Test for a class of plain records: a named tuple or a frozen dataclass."""
    if not isinstance(target, type):
        return False
    if dataclasses.is_dataclass(target):
        return bool(target.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return issubclass(target, tuple) and hasattr(target, "_fields")


def is_variable(node: torch.fx.Node) -> bool:
    """Test for a node named after the variable that its value is assigned to.

    Dynamo names other nodes after the operation.
    """
    operation = getattr(node.target, "__name__", node.target)
    return not re.fullmatch(rf"{re.escape(str(operation))}(_\d+)?", node.name)


def input_value(node: torch.fx.Node, example: Any) -> Any:
    """Value to read an input's metadata from: the fake tensor of capture or the example.

    The fake has wrong metadata if the program changes them in place, so the example is used where
    sizes and strides are static; symbolic sizes are known to the fake alone.
    """
    fake = node.meta.get("example_value", example)
    if not isinstance(fake, torch.Tensor) or not isinstance(example, torch.Tensor):
        return fake
    symbolic = any(isinstance(n, torch.SymInt) for n in (*fake.shape, *_strides(fake)))
    return fake if symbolic else example


def as_given(proxy: Proxy, example: Any) -> Proxy:
    """``proxy`` of an input that needs a gradient if ``example`` does.

    The fake tensor of capture needs one, too, once the program has written a value to it that does.
    """
    if isinstance(proxy, TensorProxy) and isinstance(example, torch.Tensor):
        return proxy.replace(requires_grad=example.requires_grad)
    return proxy


def outdated(
    proxies: Iterable[Proxy], graph: torch.fx.GraphModule, examples: Iterable[Any]
) -> bool:
    """Test if a symbolic size of an input in ``proxies`` has been specialized since.

    It may have become a number, or another symbol that it equals.
    """
    nodes = (n for n in graph.graph.nodes if n.op == "placeholder")
    for p, node, example in zip(proxies, nodes, examples, strict=False):
        if isinstance(p, TensorProxy):
            now = input_value(node, example)
            pairs = zip((*p.shape, *p.strides), (*now.shape, *_strides(now)), strict=True)
            if any(isinstance(dim, SymDim) and _other(dim, size) for dim, size in pairs):
                return True
    return False


def _other(dim: SymDim, size: Any) -> bool:
    return not is_symbolic(size) or number_text(size) != dim.name


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def _tagged(node: torch.fx.Node) -> torch.fx.Node:
    """Node whose value a ``tj.tag`` call tags."""
    while node.target is tag_function:
        inner = node.args[0]
        assert isinstance(inner, torch.fx.Node)
        node = inner
    return node


def tagged(
    call: BoundSymbol, node: torch.fx.Node, tags: Mapping[Any, TagSet], registry: TagRegistry
) -> BoundSymbol:
    """``call``, the import of ``node``, with the user's tags on its outputs.

    Views inherit tags of their bases that propagate through views.
    """
    taken_by = takers(node)
    single = isinstance(call.outputs, Proxy)
    found = [
        tags.get(node if single else taken_by.get(i), NO_TAGS) for i in range(len(call.flat_outs))
    ]
    for alias in call.effects.aliases:
        if alias.kind == "arg":
            viewed = call.flat_args[alias.index].tags
            passed = registry.propagated(viewed, "through_views")
            found[alias.output] = registry.merge(passed, found[alias.output], call.source)
    if not any(found):
        return call
    given = iter(found)
    outputs = map_tree(lambda p: p.replace(tags=next(given)), call.outputs, Proxy)
    return call.replace(outputs=outputs)


def tagged_names(graph: torch.fx.GraphModule) -> dict[torch.fx.Node, str]:
    """Names of tagged values: in ``total = tj.tag(x + y, "SAVE")``, Dynamo names the tag's node."""
    tags = [n for n in graph.graph.nodes if n.target is tag_function]
    return {_tagged(n): n.name for n in tags if not re.fullmatch(r"tag(_\d+)?", n.name)}


def user_tags(graph: torch.fx.GraphModule, registry: TagRegistry) -> dict[Any, TagSet]:
    """Tags that ``tj.tag`` calls put on the values of other nodes, by node.

    :raises TagError: for an unknown tag, or one not for values, with the user's line.
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
