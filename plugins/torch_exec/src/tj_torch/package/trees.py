"""Arguments and results as JSON: containers and plain values; callers describe the leaves.

Each node is a pair of its kind and its content. Values of Python are kept as text with their type,
so that ``1``, ``1.0`` and ``True``, or ``0.0`` and ``-0.0``, differ.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tj_core.extend import PackageError

__all__ = ["Fields", "Tree", "described", "leaves", "rebuilt", "value_of", "value_text"]

Tree = list[Any]
"""A node: ``[kind, content]``; a leaf of a caller's has a kind of its own."""

_PLAIN = (type(None), bool, int, float, str, complex)


class Fields(dict[str, Any]):
    """A record that a program returned, as a dict whose items are attributes, too.

    The class of the record is not imported where a package runs.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def value_text(value: Any) -> list[str] | None:
    """Type and text of a plain value; None for another object."""
    if type(value) in _PLAIN:
        return [type(value).__name__, repr(value)]
    if isinstance(value, torch.dtype | torch.device):
        return [type(value).__name__, str(value)]
    return None


def value_of(text: list[str]) -> Any:
    """The value that `value_text` describes."""
    kind, said = text
    if kind == "dtype":
        return getattr(torch, said.removeprefix("torch."))
    if kind == "device":
        return torch.device(said)
    if kind in ("float", "complex"):
        return (float if kind == "float" else complex)(said)
    if kind == "int":
        return int(said)
    if kind == "str":
        return ast.literal_eval(said)
    return {"None": None, "True": True, "False": False}[said]


def described(value: Any, leaf: Callable[[Any, str], Tree | None], path: str) -> Tree:
    """The tree of ``value``; ``leaf`` may answer for any part of it, with its path.

    :raises PackageError: for an object that has no place in a package.
    """
    found = leaf(value, path)
    if found is not None:
        return found
    kind = type(value)
    if kind in (tuple, list, torch.Size):
        items = [described(item, leaf, f"{path}[{i}]") for i, item in enumerate(value)]
        return [kind.__name__, items]
    if isinstance(value, tuple) and (fields := getattr(value, "_fields", None)):
        rows = [(n, described(getattr(value, n), leaf, f"{path}.{n}")) for n in fields]
        return ["namedtuple", [kind.__name__, *map(list, rows)]]
    if isinstance(value, tuple) and getattr(torch.return_types, kind.__name__, None) is kind:
        items = [described(item, leaf, f"{path}[{i}]") for i, item in enumerate(value)]
        return ["torch.return_types", [kind.__name__, *items]]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        name = "dict" if kind is dict else "fields"
        rows = [(k, described(item, leaf, f"{path}[{k!r}]")) for k, item in value.items()]
        return [name, [*map(list, rows)]]
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        rows = [(n, described(getattr(value, n), leaf, f"{path}.{n}")) for n in names]
        return ["fields", [*map(list, rows)]]
    text = value_text(value)
    if text is None:
        raise PackageError(f"{path} is a {kind.__qualname__}, which has no place in a package")
    return ["value", text]


def rebuilt(tree: Tree, leaf: Callable[[str, Any], Any]) -> Any:
    """The value of ``tree``; ``leaf`` makes those of other kinds than `described` knows."""
    kind, content = tree
    if kind == "value":
        return value_of(content)
    if kind in ("tuple", "list", "Size"):
        items = [rebuilt(item, leaf) for item in content]
        return {"tuple": tuple, "list": list, "Size": torch.Size}[kind](items)
    if kind in ("dict", "fields"):
        made = {key: rebuilt(item, leaf) for key, item in content}
        return made if kind == "dict" else Fields(made)
    if kind == "namedtuple":
        name, *rows = content
        named: Any = collections.namedtuple(name, [key for key, _ in rows])  # type: ignore[misc]
        return named(*(rebuilt(item, leaf) for _, item in rows))
    if kind == "torch.return_types":
        name, *parts = content
        return getattr(torch.return_types, name)([rebuilt(item, leaf) for item in parts])
    return leaf(kind, content)


def leaves(tree: Tree) -> Iterator[Tree]:
    """The nodes of ``tree`` that are no containers, in order."""
    kind, content = tree
    if kind in ("tuple", "list", "Size"):
        for item in content:
            yield from leaves(item)
    elif kind in ("dict", "fields", "namedtuple"):
        for _, item in content[kind == "namedtuple" :]:
            yield from leaves(item)
    elif kind == "torch.return_types":
        for item in content[1:]:
            yield from leaves(item)
    else:
        yield tree
