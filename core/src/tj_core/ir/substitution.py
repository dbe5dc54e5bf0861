"""Substitution: replace values by others, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tj_core.ir.proxy import Proxy
from tj_core.ir.tree import map_tree

__all__ = ["substituted", "substitution"]


def substitution(values: Mapping[str, Any]) -> Callable[[Proxy], Any]:
    """A function that maps a value to the entry of ``values`` under its name, else to itself."""
    return lambda p: values.get(p.name, p)


def substituted(tree: Any, values: Mapping[str, Any]) -> Any:
    """``tree`` with its values replaced by the entries of ``values`` under their names."""
    return map_tree(substitution(values), tree, Proxy) if values else tree
