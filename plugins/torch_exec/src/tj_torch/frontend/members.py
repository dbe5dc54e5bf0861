"""Guards on members of classes: what capture found there is still what is found.

Dynamo guards the code of a method where it found it, but not that a class between does not get one
of its own, nor what ``super``, class methods and modules' methods come from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tj_torch.frontend.dynamo import Lookup

__all__ = ["Condition", "conditions", "found_in"]

_IMMUTABLE = 1 << 8
"""``Py_TPFLAGS_IMMUTABLETYPE``: the members of such a class cannot be replaced."""


@dataclass(frozen=True, slots=True)
class Condition:
    """``expression`` over ``owner`` is ``value``, by identity; ``text`` is for people."""

    expression: str
    owner: Any
    value: Any
    text: str


def conditions(lookups: Iterable[Lookup]) -> Iterator[Condition]:
    """What must hold so that each of ``lookups`` finds the same again, each condition once."""
    seen: set[tuple[Any, str]] = set()
    for lookup in map(_general, lookups):
        key = (lookup.cls, lookup.name)
        if key not in seen and _replaceable(lookup.cls):
            seen.add(key)
            yield _condition(lookup)
        for cls in lookup.without:
            text = f"{cls.__qualname__} has no {lookup.name} of its own"
            expression = f"{lookup.name!r} in vars({{owner}})"
            yield Condition(expression, cls, False, text)


def _general(lookup: Lookup) -> Lookup:
    """A class of PyTorch finds what is `torch.nn.Module`'s there: one condition for all of them."""
    module = torch.nn.Module
    if (
        lookup.cls.__module__.startswith("torch.")
        and issubclass(lookup.cls, module)
        and vars(module).get(lookup.name) is lookup.found
    ):
        return Lookup(module, lookup.name, lookup.found)
    return lookup


def _replaceable(cls: type) -> bool:
    """Whether a program may replace members: of its own classes and of PyTorch's, say."""
    return not cls.__flags__ & _IMMUTABLE and (
        cls.__module__.partition(".")[0] not in sys.stdlib_module_names
    )


def _condition(lookup: Lookup) -> Condition:
    """The cheapest expression that tells ``lookup.found`` from another member."""
    cls, name, found = lookup.cls, lookup.name, lookup.found
    text = f"{cls.__qualname__}.{name} is unchanged"
    read = getattr(cls, name, None)
    if name.isidentifier():
        if read is found:
            return Condition(f"{{owner}}.{name}", cls, found, text)
        if isinstance(found, staticmethod) and read is found.__func__:
            return Condition(f"{{owner}}.{name}", cls, read, text)
    return Condition(f"found_in({{owner}}, {name!r})", cls, found, text)


def found_in(cls: type, name: str) -> object:
    """``name`` as ``cls`` or its bases have it, before any descriptor acts; else None."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None
