"""State of Python that handlers of users' tensor subclasses read: what they do depends on it."""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from tj_torch.ops.fakes.places import is_users
from tj_torch.ops.fakes.read_places import (
    ANSWER,
    CELL,
    CONTAINERS,
    ITEM,
    ITSELF,
    PLAIN,
    SLOT,
    VARIABLE,
    Read,
    Way,
    elements_of,
    is_array,
    kept,
)
from tj_torch.ops.fakes.user_state import functions_of, is_hidden, names_of, texts_of

__all__ = ["Reads", "reads", "reads_of"]

_DEPTH = 4
"""Depth of attributes to which objects are searched."""

_MOST = 100
"""Number of elements of a container whose attributes are searched."""


_DESCRIPTORS = (property, classmethod, staticmethod)
_SILENT = frozenset(("__init__", "__new__", "__repr__", "__str__", "__init_subclass__"))
"""Methods of other objects that handlers do not call by an operator."""

_ENVIRONMENT = frozenset(("environ", "getenv", "environb", "getenvb"))

_OF_PROCESS: Mapping[str, Callable[[], Any]] = {
    "argv": lambda: [*sys.argv],
    "current_thread": lambda: threading.current_thread().name,
    "get_ident": threading.get_ident,
    "getcwd": os.getcwd,
    "getpid": os.getpid,
}
"""Answers of Python on the process and the thread, by the names in functions that ask."""

_ANEW: Mapping[str, Set[str]] = {
    "time": {n for n in vars(time) if re.fullmatch("(time|monotonic|.*_counter|.*s_time)(_ns)?", n)}
    | {"clock_gettime", "clock_gettime_ns", "ctime", "gmtime", "localtime", "strftime"},
    "datetime": {"now", "today", "utcnow"},
    "os": {"urandom", "times"},
    "uuid": {"uuid1", "uuid4"},
    "secrets": {*secrets.__all__},
}
"""Functions of Python's modules, and methods of their classes, that answer anew in each call."""


@dataclass(frozen=True, slots=True)
class Reads:
    """State that functions read: ``values``, and of any object the attributes ``names``.

    ``asked`` are names among these of attributes that an object may lack.
    ``anew`` are functions of Python that they call, and that answer anew in each call.
    """

    values: tuple[Read, ...]
    names: frozenset[str]
    asked: frozenset[str]
    anew: tuple[str, ...]


@dataclass(slots=True)
class _Search:
    found: dict[Any, Read] = field(default_factory=dict)
    seen: dict[Any, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    anew: set[str] = field(default_factory=set)
    bases: set[type] = field(default_factory=set)

    def kind(self, kind: type) -> None:
        """Search a class and its bases: its values, and what its methods read."""
        bases = [base for base in kind.__mro__ if is_users(base.__module__)]
        self.bases |= {*bases}
        for base in bases:
            for member in list(vars(base).values()):
                for function in functions_of(member):
                    self.function(function)
        for base in bases:
            for name, member in list(vars(base).items()):
                is_function = isinstance(member, (types.FunctionType, *_DESCRIPTORS))
                if not is_hidden(name) and not is_function:  # methods have guards
                    label = f"{base.__qualname__}.{name}"
                    self.value(member, label, ITEM, base, name, self.names)

    def function(self, function: Any) -> None:
        """Search the globals, the closure and the defaults of a user's function."""
        known = not isinstance(function, types.FunctionType) or id(function) in self.seen
        if known or not is_users(function.__module__):
            return
        self.seen[id(function)] = function
        names, space = names_of(function), function.__globals__
        self.names |= names
        if not names.isdisjoint(("getattr", "hasattr")):
            self.asked |= texts_of(function)
            names |= texts_of(function)
        for name in sorted(names & space.keys()):
            self.value(space[name], name, ITEM, space, name, names)
            self.anew |= _anew(space[name], names)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if cell != types.CellType():
                self.value(cell.cell_contents, name, CELL, cell, None, names)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if not isinstance(default, PLAIN):
                label = f"a default of {function.__qualname__}"
                self.value(default, label, CELL, types.CellType(default), None, names)
        self.process(names)

    def process(self, names: Set[str]) -> None:
        """Note what functions of Python that are called by ``names`` read."""
        if not names.isdisjoint(_ENVIRONMENT):
            held = os.environ._data  # type: ignore[attr-defined]
            self.note("os.environ", ITSELF, held, None, kept(held))
        for name in sorted(names & _OF_PROCESS.keys()):
            asked = _OF_PROCESS[name]
            self.note(name, ANSWER, asked, None, kept(asked()))

    def value(
        self,
        value: Any,
        label: str,
        way: Way,
        owner: Any,
        name: str | None,
        names: Set[str],
        depth: int = 0,
    ) -> None:
        """Note ``value``, and search the attributes of it that ``names`` have."""
        if value is owner or isinstance(value, PLAIN) or is_array(value):
            self.note(label, way, owner, name, value if value is owner else kept(value))
        elif isinstance(value, (types.FunctionType, *_DESCRIPTORS)):
            functions = [f for f in functions_of(value) if isinstance(f, types.FunctionType)]
            if any(is_users(function.__module__) for function in functions):
                self.note(label, way, owner, name, kept(value))
            for function in functions:
                self.function(function)
        elif isinstance(value, CONTAINERS):
            self.note(label, way, owner, name, kept(value))
            self.elements(value, label, names, depth)
        elif isinstance(value, ContextVar):
            held = value.get(value)
            self.value(held, label, VARIABLE, value, None, names, depth + 1)
        elif _is_looked_at(value):
            self.note(label, way, owner, name, kept(value))
            self.attributes(value, label, names, depth + 1)

    def elements(self, container: Any, label: str, names: Set[str], depth: int) -> None:
        """Search the functions and objects in a container."""
        for element in [*elements_of(container)][:_MOST]:
            self.function(element)
            if _is_looked_at(element):
                self.attributes(element, f"{label}[...]", names, depth + 1)

    def attributes(self, value: Any, label: str, names: Set[str], depth: int) -> None:
        """Search the attributes and methods of ``value`` that ``names`` have."""
        key = (id(value), frozenset(names))
        if key in self.seen or depth > _DEPTH or isinstance(value, torch.Tensor):
            return
        self.seen[key] = value
        if isinstance(value, type):
            self.members(value, label, names, depth)
            return
        names = names | self.methods(type(value), names)
        for name in sorted(names & self.slots(value)):
            held, way = getattr(value, name, value), SLOT
            self.value(held, f"{label}.{name}", way, value, name, names, depth)
        if isinstance(value, threading.local):
            return  # its dict is that of a thread
        for own in _dicts(value):
            # What the object lacks is its class's, or nobody's, until the object gets it.
            others = set() if isinstance(value, _SPACES) else {*_data(type(value)), *self.asked}
            for name in sorted(names & (own.keys() | others)):
                held, way = own.get(name, own), ITEM
                self.value(held, f"{label}.{name}", way, own, name, names, depth)
        if not isinstance(value, types.ModuleType):
            self.members(type(value), type(value).__qualname__, names, depth)

    def members(self, kind: type, label: str, names: Set[str], depth: int) -> None:
        """Search the members of a class and of its bases that ``names`` have."""
        # Those of the searched classes are all noted, and their names have guards.
        mine = (base for base in kind.__mro__ if base not in self.bases)
        bases = [base for base in mine if is_users(base.__module__)]
        wanted = names & (self.asked.union(*(vars(base) for base in bases)))
        for base in bases:
            for name in sorted(n for n in wanted if not is_hidden(n)):
                held, way = vars(base).get(name, base), ITEM
                self.value(held, f"{label}.{name}", way, base, name, names, depth)

    def slots(self, value: Any) -> set[str]:
        """Names of attributes that have no place in an object's dict."""
        if isinstance(value, threading.local):
            return {*vars(value), *self.asked}
        members = (item for base in type(value).__mro__ for item in vars(base).items())
        return {name for name, m in members if isinstance(m, types.MemberDescriptorType)}

    def methods(self, kind: type, names: Set[str]) -> Set[str]:
        """Search methods of a user's class with ``names`` or for operators; the names they have."""
        members = {
            name: member
            for base in reversed(kind.__mro__)
            if is_users(base.__module__)
            for name, member in vars(base).items()
        }
        reached = {name for name in members if name in names or _is_operator(name)}
        found: set[str] = set()
        while reached:
            functions = [f for name in reached for f in functions_of(members.pop(name))]
            for function in functions:
                if isinstance(function, types.FunctionType):
                    self.function(function)
                    found |= names_of(function)
            reached = found & members.keys()
        return found

    def note(self, label: str, way: Way, owner: Any, name: str | None, value: Any) -> None:
        """Note a value."""
        read = Read(label, way, owner, name, value)
        self.found.setdefault(read.place, read)


def _anew(value: Any, names: Set[str]) -> Set[str]:
    """Functions of Python that answer anew, of those that ``names`` find by ``value``."""
    if isinstance(value, types.ModuleType):
        return names & _ANEW.get(value.__name__, frozenset())
    found = _ANEW.get(getattr(value, "__module__", None) or "", frozenset())
    return found & (names if isinstance(value, type) else {getattr(value, "__name__", "")})


def _is_operator(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _SILENT


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """The dicts with an object's attributes; a module has several."""
    if isinstance(own := getattr(value, "__dict__", None), dict):
        yield own
        if isinstance(value, torch.nn.Module):
            yield from (own[name] for name in ("_parameters", "_buffers", "_modules"))


_SPACES = (types.ModuleType, types.SimpleNamespace)
"""Objects whose class has no attributes for them."""

_HOLDERS = (torch.Tensor, torch.nn.Module, types.SimpleNamespace, threading.local)
"""Classes of others whose objects hold the user's values."""


def _is_looked_at(value: Any) -> bool:
    """Test for an object of the user's, or one that holds values of the user's."""
    if isinstance(value, types.ModuleType):
        return is_users(value.__name__)
    kind = value if isinstance(value, type) else type(value)
    return is_users(kind.__module__) or isinstance(value, _HOLDERS)


def _data(kind: type) -> Iterable[str]:
    """Names of members of a user's class that an attribute of an object hides."""
    for base in kind.__mro__:
        if is_users(base.__module__):
            yield from (n for n, m in vars(base).items() if not isinstance(m, property))


def reads(kind: type) -> tuple[Read, ...]:
    """All values that the methods of ``kind``, a tensor subclass, and of its bases read."""
    return reads_of((kind,)).values


def reads_of(searched: Iterable[Any]) -> Reads:
    """All values that functions, and the methods of classes, read."""
    search = _Search()
    for value in searched:
        (search.kind if isinstance(value, type) else search.function)(value)
    names = frozenset(search.names | search.asked)
    asked, anew = frozenset(search.asked), tuple(sorted(search.anew))
    return Reads(tuple(search.found.values()), names, asked, anew)
