"""The function that a method of ``torch.Tensor`` is, where both are one operation."""

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
"""The kinds of arguments that naming tells apart."""

Arrange = Callable[[tuple[Any, ...]], tuple[Any, ...]]
"""Puts the arguments of one spelling in the order of another."""

# Methods written in Python that only call the function of that name, which is written in Python
# too, with the same parameters in the same order.
_FORWARDING = frozenset({"istft", "split", "stft", "unique", "unique_consecutive"})


@dataclass(frozen=True, slots=True)
class MethodForm:
    """What to call for a method: a function of ``torch`` or the method, and how."""

    function: Callable[..., Any] | None
    arrange: Arrange


def is_function(name: str) -> Callable[..., Any] | None:
    """``torch.<name>`` if that is a function compiled from the operator of that name."""
    found = vars(torch).get(name)
    return found if isinstance(found, types.BuiltinFunctionType) else None


def method_form(name: str, kinds: Sequence[str], keywords: Collection[str]) -> MethodForm:
    """How to spell ``x.name(...)``; ``kinds`` are those of its positions, that of ``x`` included.

    A method stays one unless an operator of its name has overloads in which the method is fully
    described: written in C++, its tensor always in one place, its arguments as in the schema.
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
        return MethodForm(None, _same)  # the method alone takes a tensor for a size
    plain = any(o.accepts(ints, keywords) for o in rest)
    gathers = _gathers(rest, ints, keywords)
    if plain == gathers:  # neither fits, or the parser has to choose
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
    """``torch.zeros(2, 3)`` as ``torch.zeros((2, 3))``; None for calls that are fine."""
    ints = [kind == INT for kind in kinds]
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
