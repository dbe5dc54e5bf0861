"""Substitution: other values in the places of values, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tj_core.ir.proxy import Proxy
from tj_core.ir.tree import map_tree

__all__ = ["substituted", "substitution"]


def substitution(values: Mapping[str, Any]) -> Callable[[Proxy], Any]:
    """A function from a value to the one of ``values`` under its name, or to itself."""
    return lambda p: values.get(p.name, p)


def substituted(tree: Any, values: Mapping[str, Any]) -> Any:
    """``tree`` with what ``values`` say is in the places of its values; itself if that is none."""
    return map_tree(substitution(values), tree, Proxy) if values else tree
