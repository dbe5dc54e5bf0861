"""Values that handlers of tensor subclasses read: where, what they were, if they are the same."""

from __future__ import annotations

import enum
import operator
import types
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any

import torch

from tj_torch.torch_private.runtime import OpOverload

__all__ = [
    "ANSWER",
    "CELL",
    "CONTAINERS",
    "ITEM",
    "ITSELF",
    "PLAIN",
    "SLOT",
    "VARIABLE",
    "Read",
    "Way",
    "elements_of",
    "is_array",
    "kept",
    "same_part",
]

PLAIN = (int, float, complex, bool, str, bytes, enum.Enum, torch.dtype, torch.device, type(None))
CONTAINERS = (list, dict, set, deque, tuple, frozenset)
_NUMBERS = (int, float, complex)
_COMPARED = (*PLAIN, types.FunctionType, types.BuiltinFunctionType, type, OpOverload)
"""Types of elements for which ``==`` is Python's own."""
_DEPTH = 4
"""Depth of nested containers that are compared by their elements."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to read a value: as Python over ``{0}``, with the name ``{1}``, and as a function."""

    term: str
    get: Callable[[Any, Any], Any]


CELL = Way("{0}.cell_contents", lambda cell, _: cell.cell_contents)
ITEM = Way("{0}.get({1!r}, {0})", lambda space, name: space.get(name, space))
SLOT = Way("getattr({0}, {1!r}, {0})", lambda thing, name: getattr(thing, name, thing))
VARIABLE = Way("{0}.get({0})", lambda variable, _: variable.get(variable))
ANSWER = Way("{0}()", lambda function, _: function())
ITSELF = Way("{0}", lambda thing, _: thing)


@dataclass(frozen=True, slots=True)
class Read:
    """A value or a container that a handler reads of ``owner``, in a ``way``.

    ``name`` is that of an attribute, a global or a class's member, else None. ``value`` is
    `kept`; the owner itself stands for an absent one.
    """

    label: str
    way: Way
    owner: Any
    name: str | None
    value: Any

    @property
    def space(self) -> Any:
        """The owner, or the members of a class."""
        return vars(self.owner) if isinstance(self.owner, type) else self.owner

    def code(self, space: str) -> str:
        """Python that reads the value, where the `space` has this name."""
        term = self.way.term.format(space, self.name)
        # None is no such value, and Python is faster without a default.
        plain = self.way is ITEM and self.value is not self.owner and self.value is not None
        return term.replace(f", {space})", ")") if plain else term

    @property
    def place(self) -> Any:
        """A key that is equal for reads of one value."""
        return (self.way.term, self.name, id(self.owner))

    @property
    def same(self) -> Callable[[Any, Any], bool]:
        """Test if another value is the same as this."""
        if isinstance(self.value, _Object | _Array | _Contents) or self.value is self.owner:
            return same_part
        return _test_of(self.value)

    @property
    def text(self) -> str:
        """The condition in words; one that compares with a number counts for recompilations."""
        shown = repr(self.value) if self.same in (_same_text, _same) else ""
        function = isinstance(self.value, types.FunctionType)
        fits = not function and 0 < len(shown) <= 80
        return f"{self.label} == {shown}" if fits else f"{self.label} is unchanged"

    @property
    def key(self) -> Any:
        """The value in a form to be hashed."""
        absent = self.value is self.owner
        return (self.label, None if absent else _key(self.value))

    def is_changed_by(self, written: Any, names: Set[str]) -> bool:
        """Test if a write to an object changes this: to its attributes ``names``, if there are any.

        ``written`` may also be a dict of globals.
        """
        owner = self.owner
        if isinstance(written, type):
            # A member that a derived class gets hides that of its base.
            related = isinstance(owner, type) and (
                issubclass(written, owner) or issubclass(owner, written)
            )
            return related and self.name in names
        if owner is written or (names and getattr(written, "__dict__", None) is owner):
            return not names or self.name in names or isinstance(owner, types.CellType)
        now = self.way.get(self.space, self.name)
        return (now is written and not names) or any(part is written for part in _containers(now))


@dataclass(frozen=True, slots=True, eq=False)
class _Object:
    """An object that is compared by identity, and not kept alive if it allows that."""

    get: Callable[[], Any]
    number: int

    def __eq__(self, other: object) -> bool:
        value = self.get()
        return isinstance(other, _Object) and value is not None and other.get() is value

    def __hash__(self) -> int:
        return self.number


@dataclass(frozen=True, slots=True)
class _Array:
    """An array of numbers, with its ``content``."""

    kind: type
    content: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Contents:
    """Contents of a container that has more than plain elements; ``keys`` are those of a dict.

    ``same`` are its elements, if they do not change: the same ones have the same contents.
    """

    kind: type
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    same: tuple[Any, ...] | None


def elements_of(container: Any) -> Iterable[Any]:
    """Elements of a container, or values of a dict."""
    return container.values() if isinstance(container, dict) else container


def kept(value: Any, depth: int = 0) -> Any:
    """Copy ``value`` to compare it later; objects without a value of their own by identity."""
    if isinstance(value, _COMPARED):
        return value
    if content := _content_of(value):
        return _Array(type(value), content)
    if not isinstance(value, CONTAINERS) or depth > _DEPTH:
        try:
            return _Object(weakref.ref(value), id(value))
        except TypeError:
            return _Object(lambda: value, id(value))
    if all(isinstance(element, _COMPARED) for element in elements_of(value)):
        return value.copy() if hasattr(value, "copy") else value
    keys = tuple(value) if isinstance(value, dict) else ()
    elements = tuple(elements_of(value))
    same = elements if all(map(_is_fixed, elements)) else None
    return _Contents(type(value), keys, tuple(kept(e, depth + 1) for e in elements), same)


def _is_fixed(value: Any) -> bool:
    """Test for a plain value, or a tuple of such ones."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, _COMPARED)


def is_array(value: Any) -> bool:
    """Test for an array of numbers, of Python or NumPy."""
    return isinstance(value, bytearray | array) or type(value).__module__ == "numpy"


def _content_of(value: Any) -> tuple[Any, ...]:
    """Numbers of an array, and what tells them from equal ones; empty for any other object."""
    if isinstance(value, bytearray | array):
        return (getattr(value, "typecode", ""), bytes(value))
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return (str(value.dtype), value.shape, value.tobytes())
    return ()


def _containers(value: Any, depth: int = 0) -> Iterable[Any]:
    """The containers in a value, and itself if it is one."""
    if isinstance(value, CONTAINERS) and depth <= _DEPTH:
        yield value
        for element in elements_of(value):
            yield from _containers(element, depth + 1)


def _key(value: Any) -> Any:
    if isinstance(value, _Contents):
        return (value.kind, tuple(map(id, value.keys)), tuple(map(_key, value.values)))
    if isinstance(value, _Object | _Array):
        return value
    return (type(value), repr(value))


def _test_of(value: Any) -> Callable[[Any, Any], bool]:
    """Test for what is the same as ``value``, a plain one or a container of plain ones."""
    elements = elements_of(value) if isinstance(value, CONTAINERS) else (value,)
    # 0.0 == -0.0, and 1 == True.
    return _same_text if any(isinstance(e, _NUMBERS) for e in elements) else _same


def _same(now: Any, before: Any) -> bool:
    """Test for the same value or contents."""
    return type(now) is type(before) and bool(now == before)


def _same_text(now: Any, before: Any) -> bool:
    """Test for the same numbers, with signs of zero; a NaN is the same as a NaN."""
    if type(now) is not type(before):
        return False
    # Texts take long, and mostly the numbers are the same objects.
    ordered = isinstance(now, list | tuple) and len(now) == len(before)
    return (ordered and all(map(operator.is_, now, before))) or repr(now) == repr(before)


def same_part(now: Any, before: Any) -> bool:
    """Test for the same object, or for the same ones in a container."""
    if isinstance(before, _Object):
        return before.get() is now
    if isinstance(before, _Array):
        return type(now) is before.kind and _content_of(now) == before.content
    if isinstance(before, _Contents):
        found: Any = now
        if type(now) is not before.kind or len(found) != len(before.values):
            return False
        known = before.keys
        if not all(map(operator.is_, found, known)) and not all(map(_same, found, known)):
            return False
        if before.same is not None and all(map(operator.is_, elements_of(found), before.same)):
            return True
        return all(map(same_part, elements_of(found), before.values))
    return now is before or (
        isinstance(before, (*PLAIN, *CONTAINERS)) and _test_of(before)(now, before)
    )
