"""Trees of arguments: tuples, lists, dicts and slices with anything else as leaves.

A map that changes nothing returns the very same object, so untouched calls stay identical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["leaves", "map_tree"]


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves of ``tree``, left to right; None is a leaf."""
    found: list[Any] = []
    _collect((tree,), found)
    return iter(found)


_NESTED = frozenset((tuple, list, dict, slice))


def _collect(items: Iterable[Any], found: list[Any]) -> None:
    # A list and not a generator, and no call for a leaf: every pass flattens every call.
    for item in items:
        kind = type(item)
        if kind not in _NESTED:
            found.append(item)
        elif kind is dict:
            _collect(item.values(), found)
        elif kind is slice:
            found += (item.start, item.stop, item.step)
        else:
            _collect(item, found)


def map_tree(fn: Callable[[Any], Any], tree: Any, only: type = object) -> Any:
    """``tree`` with ``fn`` applied to each leaf of class ``only``."""
    kind = type(tree)
    if kind is tuple or kind is list:
        items, same = [], True
        for item in tree:
            if type(item) in _NESTED:
                new = map_tree(fn, item, only)
            else:
                new = fn(item) if isinstance(item, only) else item
            same = same and new is item
            items.append(new)
        return tree if same else kind(items)
    if kind is dict:
        pairs = {k: map_tree(fn, v, only) for k, v in tree.items()}
        return tree if all(pairs[k] is v for k, v in tree.items()) else pairs
    if kind is slice:
        parts = (tree.start, tree.stop, tree.step)
        new = map_tree(fn, parts, only)
        return tree if new is parts else slice(*new)
    return fn(tree) if isinstance(tree, only) else tree
