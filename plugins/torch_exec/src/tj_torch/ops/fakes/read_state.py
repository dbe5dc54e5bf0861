"""State of Python that handlers of users' tensor subclasses read: what they do depends on it."""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tj_torch.ops.fakes.places import is_users
from tj_torch.ops.fakes.user_state import functions_of, is_hidden, names_of
from tj_torch.torch_private.runtime import OpOverload

__all__ = ["Read", "reads"]

_PLAIN = (int, float, complex, bool, str, bytes, enum.Enum, torch.dtype, torch.device, type(None))
_NUMBERS = (int, float, complex)
_CONTAINERS = (list, dict, set, deque, tuple, frozenset)
_COMPARED = (*_PLAIN, types.FunctionType, types.BuiltinFunctionType, type, OpOverload)
"""Types of elements for which ``==`` is Python's own."""
_DEPTH = 4
"""Depth of attributes to which objects are searched."""


@dataclass(frozen=True, slots=True)
class Read:
    """A value or a container that a handler reads, by ``term`` over ``owner``."""

    label: str
    term: str
    owner: Any
    value: Any

    @property
    def same(self) -> Callable[[Any, Any], bool]:
        """Test if another value is the same as this."""
        elements = _elements(self.value) if isinstance(self.value, _CONTAINERS) else (self.value,)
        # 0.0 == -0.0, and 1 == True.
        return same_text if any(isinstance(e, _NUMBERS) for e in elements) else same

    @property
    def text(self) -> str:
        """The condition in words; one that compares with a number counts for recompilations."""
        shown = "" if isinstance(self.value, types.FunctionType) else repr(self.value)
        return f"{self.label} == {shown}" if 0 < len(shown) <= 80 else f"{self.label} is unchanged"

    @property
    def key(self) -> Any:
        """The value in a form to be hashed."""
        return (self.label, type(self.value), repr(self.value))


@dataclass(slots=True)
class _Search:
    found: dict[Any, Read] = field(default_factory=dict)
    seen: dict[int, Any] = field(default_factory=dict)

    def kind(self, kind: type) -> None:
        """Search a class and its bases: numbers and the like, and what the methods read."""
        for base in kind.__mro__:
            if not is_users(base.__module__):
                continue
            for name, member in list(vars(base).items()):
                for function in functions_of(member):
                    self.function(function)
                if not is_hidden(name):
                    label = f"{base.__qualname__}.{name}"
                    self.value(member, label, f"{{owner}}.get({name!r})", vars(base), frozenset())

    def function(self, function: Any) -> None:
        """Search the globals and the closure of a user's function."""
        known = not isinstance(function, types.FunctionType) or id(function) in self.seen
        if known or not is_users(function.__module__):
            return
        self.seen[id(function)] = function
        names, space = names_of(function), function.__globals__
        for name in sorted(names & space.keys()):
            self.value(space[name], name, f"{{owner}}.get({name!r})", space, names)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if cell != types.CellType():
                self.value(cell.cell_contents, name, "{owner}.cell_contents", cell, names)

    def value(
        self, value: Any, label: str, term: str, owner: Any, names: frozenset[str], depth: int = 0
    ) -> None:
        """Note ``value`` if it is plain, or search the attributes of it that ``names`` have."""
        if isinstance(value, _PLAIN):
            self.note(label, term, owner, value)
        elif isinstance(value, types.FunctionType):
            if is_users(value.__module__):
                self.note(label, term, owner, value)
                self.function(value)
        elif isinstance(value, _CONTAINERS):
            if all(isinstance(element, _COMPARED) for element in _elements(value)):
                self.note(label, term, owner, value.copy() if hasattr(value, "copy") else value)
        elif depth < _DEPTH:
            self.attributes(value, label, names, depth)

    def attributes(self, value: Any, label: str, names: frozenset[str], depth: int) -> None:
        """Search the attributes and methods of ``value`` that ``names`` have."""
        for held in _held(value):
            for name in sorted(names & held.keys()):
                inner = f"{{owner}}.get({name!r})"
                self.value(held[name], f"{label}.{name}", inner, held, names, depth + 1)
        if not isinstance(value, type):
            for base in type(value).__mro__:
                for name in names & vars(base).keys():
                    for function in functions_of(vars(base)[name]):
                        self.function(function)

    def note(self, label: str, term: str, owner: Any, value: Any) -> None:
        """Note what ``term`` over ``owner`` is."""
        self.found.setdefault((term, id(owner)), Read(label, term, owner, value))


def _elements(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _held(value: Any) -> Iterator[Any]:
    """The dicts with the attributes of a user's module, class or object."""
    if isinstance(value, torch.Tensor | torch.nn.Module):
        return
    if isinstance(value, type):
        yield from (vars(base) for base in value.__mro__ if is_users(base.__module__))
    elif isinstance(value, types.ModuleType):
        if is_users(value.__name__):
            yield vars(value)
    elif is_users(type(value).__module__) or isinstance(value, types.SimpleNamespace):
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            yield held


def reads(kind: type) -> tuple[Read, ...]:
    """All values that the methods of ``kind``, a tensor subclass, and of its bases read."""
    search = _Search()
    search.kind(kind)
    return tuple(search.found.values())


def same(now: Any, before: Any) -> bool:
    """Test for the same value or contents."""
    return type(now) is type(before) and bool(now == before)


def same_text(now: Any, before: Any) -> bool:
    """Test for the same numbers, with signs of zero; a NaN is the same as a NaN."""
    return type(now) is type(before) and repr(now) == repr(before)
