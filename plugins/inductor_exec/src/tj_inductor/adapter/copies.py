"""Copies in graphs, as Inductor finds and removes them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch

from tj_inductor.adapter.features import is_lost
from tj_inductor.adapter.names import COPIES

__all__ = ["copied", "in_one_place", "value_of"]


def in_one_place(outputs: Sequence[torch.fx.Node], written: Collection[int]) -> list[int]:
    """Places of outputs that are copies of an input, of the same value as an earlier output, or of
    a part of a value.

    Outputs in ``written`` are left out: each is to be written to an input.

    Inductor removes copies, and may then return the input, or one tensor twice: it asks which
    outputs share memory before it removes the copies.
    """
    if is_lost(COPIES):
        return [index for index in range(len(outputs)) if index not in written]
    first = {value_of(copied(outputs[index])) for index in written}
    found = []
    for index, node in enumerate(outputs):
        if index in written:
            continue
        origin = copied(node)
        known = value_of(origin) in first or getattr(origin, "op", None) == "placeholder"
        if known or _is_part(node, origin):
            found.append(index)
        first.add(value_of(origin))
    return found


def _is_part(node: torch.fx.Node, origin: torch.fx.Node) -> bool:
    """Test if ``node`` may have fewer elements than ``origin``, which it is a copy or view of."""
    if origin is node:
        return False
    values = [x.meta.get("val") for x in (node, origin)]
    # By their texts: to compare symbols would guard.
    return len({str(x.numel()) for x in values if isinstance(x, torch.Tensor)}) == 2


def value_of(node: torch.fx.Node) -> Hashable:
    """A key of the value of ``node``: several nodes may take one part of a call's results."""
    return node.args if node.target is operator.getitem else node


PLAIN = {
    torch.ops.aten.alias.default: (None, 0),
    torch.ops.aten.clone.default: (None, 0),
    torch.ops.aten.copy.default: (None, 1),
}
"""Operators that copy whatever their arguments are, as Inductor's registry has them."""


def _copies() -> Mapping[Any, tuple[Any, Any]]:
    """The operators that copy, or may: each with a test, and the place of what it copies."""
    if is_lost(COPIES):
        return PLAIN
    from tj_inductor.adapter.names import noop_registry

    found: Mapping[Any, tuple[Any, Any]] = noop_registry
    return found


def copied(node: torch.fx.Node) -> torch.fx.Node:
    """The node that ``node`` is a copy or view of, as far as Inductor finds out; else itself."""
    copies = _copies()
    while True:
        if node.target is operator.getitem and _views(node.args[0]):
            node = node.args[0]  # type: ignore[assignment]
        target, index = node.target, 0
        if target in copies:
            _, index = copies[target]
        elif not _views(node):
            return node
        source = node.args[index] if isinstance(index, int) else _source(index, node)
        if not isinstance(source, torch.fx.Node):
            return node
        node = source


def _views(node: Any) -> bool:
    """Test if ``node`` is a view. Parts from ``unsafe_split`` are, though no schema says so."""
    # Operators have the attribute, and functions of `tj_inductor.adapter.calls`.
    return bool(getattr(getattr(node, "target", None), "is_view", False))


def _source(index: Callable[[Any], Any], node: torch.fx.Node) -> Any:
    """The value that ``node`` is a copy of, as Inductor's registry tells it."""
    try:
        return index(node)
    except TypeError:  # up to 2.14 it asks the arguments, and a node has no items
        return index(node.args)
