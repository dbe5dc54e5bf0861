"""Spell calls of methods of ``torch.Tensor`` as functions, where both are one operation."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tj_torch.ops.naming.schemas import Overload, overloads

__all__ = [
    "INT",
    "NUMBER",
    "OTHER",
    "TENSOR",
    "Arrange",
    "MethodForm",
    "function_arrangement",
    "is_function",
    "method_form",
]

TENSOR, INT, NUMBER, OTHER = "t", "i", "n", "o"
"""Kinds of arguments in naming: tensor, integer, other number, anything else."""

Arrange = Callable[[tuple[Any, ...]], tuple[Any, ...]]
"""Function that reorders the arguments of one spelling for another."""

# Methods in Python that only call the function of the same name, also in Python, with the same
# parameters in the same order.
_FORWARDING = frozenset({"istft", "split", "stft", "unique", "unique_consecutive"})


@dataclass(frozen=True, slots=True)
class MethodForm:
    """Spelling of a method call: a ``torch`` function, or None for the method; its arguments."""

    function: Callable[..., Any] | None
    arrange: Arrange


def is_function(name: str) -> Callable[..., Any] | None:
    """``torch.<name>`` if it is a function compiled from the operator of that name, else None."""
    found = vars(torch).get(name)
    return found if isinstance(found, types.BuiltinFunctionType) else None


def method_form(name: str, kinds: Sequence[str], keywords: Collection[str]) -> MethodForm:
    """Spelling of ``x.name(...)``; ``kinds`` are those of its positional arguments, ``x`` included.

    A method stays a method unless the schemas of the operator of its name describe it fully: it is
    written in C++, ``self`` has one position in all overloads, and the arguments fit the schema.
    """
    if name in _FORWARDING and not keywords:
        return MethodForm(vars(torch).get(name), _same)
    method = inspect.getattr_static(torch.Tensor, name, None)
    variants = [(i, o) for o in overloads(name) if (i := o.index_of_self()) is not None]
    if not isinstance(method, types.MethodDescriptorType) or not variants:
        return MethodForm(None, _same)
    ints = [kind == INT for kind in kinds[1:]]
    rest = [o.without(i) for i, o in variants]
    if any(o.takes_sizes(i) for o in rest for i, k in enumerate(kinds[1:]) if k == TENSOR):
        return MethodForm(None, _same)  # only the method accepts a tensor for a size
    plain = any(o.accepts(ints, keywords) for o in rest)
    gathers = _gathers(rest, ints, keywords)
    if plain == gathers:  # neither fits, or both do and PyTorch's parser chooses
        return MethodForm(None, _same)
    places = {i for i, _ in variants}
    function = is_function(name)
    place = places.pop() if len(places) == 1 else -1
    if function is None or not 0 <= place <= (1 if gathers else len(ints)):
        return MethodForm(None, _gathered if gathers else _same)
    return MethodForm(function, _arrangement(gathers, place))


def function_arrangement(
    name: str, kinds: Sequence[str], keywords: Collection[str]
) -> Arrange | None:
    """Spelling of ``torch.zeros(2, 3)`` as ``torch.zeros((2, 3))``; None for other calls."""
    ints = [kind == INT for kind in kinds]
    # Only sizes can be gathered: `torch.zeros(2, 3)`.
    if not (ints and all(ints)):
        return None
    variants = overloads(name)
    plain = any(o.accepts(ints, keywords) for o in variants)
    return None if plain or not _gathers(variants, ints, keywords) else _listed


def _gathers(rest: Sequence[Overload], ints: Sequence[bool], keywords: Collection[str]) -> bool:
    return bool(ints) and all(ints) and any(o.gathers(keywords) for o in rest)


def _arrangement(gathers: bool, place: int) -> Arrange:
    if place == 0:
        return _gathered if gathers else _same
    return lambda args: _moved(_gathered(args) if gathers else args, place)


def _same(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _gathered(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``x.f(2, 3)`` as ``f(x, (2, 3))``."""
    return args[0], args[1:]


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args,)


def _moved(args: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """``x.f(a, b)`` as ``f(a, x, b)``."""
    return (*args[1 : place + 1], args[0], *args[place + 1 :])
