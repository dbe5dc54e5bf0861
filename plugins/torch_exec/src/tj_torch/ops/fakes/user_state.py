"""Search for the state that methods of users' tensor subclasses may write, beside their tensors."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import logging
import queue
import random
import sys
import threading
import types
import weakref
from array import array
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from tj_torch.ops.fakes.places import Contents, Names, Place, Printed, Records, Value, is_users
from tj_torch.runtime.modes import without_modes

__all__ = ["Search", "functions_of", "is_hidden", "kinds", "names_of", "texts_of"]

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_SKIPPED = (int, float, complex, bool, str, bytes)
_RECORDS = (types.SimpleNamespace, threading.local, queue.Queue, UserDict, UserList)
"""Classes of Python's library whose objects keep their state in attributes."""
_DEPTH = 8
"""Depth of nesting to which containers and objects are searched."""
_LARGE = 1000
"""Size beyond which the elements of a container, an array or a tensor are not searched."""
_MOST = 20_000
"""Number of objects after which the search ends."""


@dataclass(slots=True)
class Search:
    """Search for the places that methods of users' tensor subclasses may write to."""

    places: list[Place] = field(default_factory=list)
    seen: dict[Any, Any] = field(default_factory=dict)

    def value(self, value: Any, label: str, depth: int = 0) -> None:
        """Search ``value``, called ``label`` in messages."""
        if depth > _DEPTH or isinstance(value, _SKIPPED) or self._known(id(value), value):
            return
        for kind, look in _LOOKS:
            if isinstance(value, kind):
                look(self, value, label, depth)
                return
        if type(value).__module__.partition(".")[0] == "numpy":
            self.note(_of_numpy(value, label))
        else:
            self.instance(value, label, depth)

    def _known(self, key: Any, value: Any = None) -> bool:
        """Test if ``key`` was searched already, or there is too much; note it as searched."""
        if key in self.seen or len(self.seen) > _MOST:
            return True
        # Kept, so that no other object gets its id during the search.
        self.seen[key] = value
        return False

    def function(self, function: types.FunctionType, label: str, depth: int) -> None:
        """Search what a user's function refers to: globals, closure, defaults, attributes."""
        if not is_users(function.__module__):
            return
        names = names_of(function)
        space = function.__globals__
        self.globals(space, names, function.__module__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self.cell(cell, name)
        keywords = function.__kwdefaults__ or {}
        for default in itertools.chain(function.__defaults__ or (), keywords.values()):
            self.value(default, f"a default of {label}", depth + 1)
        self.attributes(vars(function), label, depth)
        if "print" in names and "print" not in space and not self._known("stdout"):
            self.places.append(Printed("stdout"))
        for name in names & space.keys():
            if isinstance(space[name], types.ModuleType):
                self.module(space[name], names)

    def module(self, module: types.ModuleType, names: frozenset[str]) -> None:
        """Search what functions use of a module by ``names``."""
        if module.__name__ in _OF_MODULES:
            if not self._known(module.__name__):
                self.note(_OF_MODULES[module.__name__]())
        elif is_users(module.__name__):
            self.globals(vars(module), names, module.__name__)
        elif module is sys:
            for name in ("stdout", "stderr"):
                if name in names and not self._known(name):
                    self.places.append(Printed(name))

    def globals(self, space: dict[str, Any], names: frozenset[str], module: str) -> None:
        """Search the globals ``names`` of ``module``, whose namespace is ``space``."""
        # A collection in the middle of a capture would look like a write of the handler.
        names = names - _collectors_names(space)

        def read() -> dict[str, Any]:
            return {name: space[name] for name in names if name in space}

        self.places.append(Names(module, read(), read, space.__setitem__, space.__delitem__))
        for name, value in read().items():
            self.value(value, f"{module}.{name}")

    def cell(self, cell: types.CellType, label: str) -> None:
        """Search a variable of a closure."""

        def read() -> dict[str, Any]:
            with contextlib.suppress(ValueError):  # an empty cell
                return {label: cell.cell_contents}
            return {}

        def write(name: str, value: Any) -> None:
            cell.cell_contents = value

        def remove(name: str) -> None:
            del cell.cell_contents

        self.places.append(Names("closure", read(), read, write, remove))
        for value in read().values():
            self.value(value, label)

    def handlers(self, kind: type, label: str, depth: int) -> None:
        """Search attributes and methods of a user's class, of its bases and of its metaclass."""
        metaclass: type = type(kind)
        for base in (*kind.__mro__, *metaclass.__mro__):
            if is_users(base.__module__) and not self._known(("members", base)):
                self._members(base)

    def _members(self, base: type) -> None:
        def read() -> dict[str, Any]:
            return {n: v for n, v in vars(base).items() if not is_hidden(n)}

        def write(name: str, value: Any) -> None:
            setattr(base, name, value)

        def remove(name: str) -> None:
            delattr(base, name)

        self.places.append(Names(base.__qualname__, read(), read, write, remove))
        for name, member in list(vars(base).items()):
            for inner in functions_of(member):
                self.value(inner, f"{base.__qualname__}.{name}")

    def container(self, container: Any, label: str, depth: int) -> None:
        """Search a container and its elements."""
        self.places.append(Contents(label, container, container.copy()))
        if len(container) <= _LARGE:
            values = container.values() if isinstance(container, dict) else container
            for element in list(values):
                self.value(element, label, depth + 1)

    def instance(self, instance: Any, label: str, depth: int) -> None:
        """Search the attributes and methods of an object of a user's class."""
        if not (is_users(type(instance).__module__) or isinstance(instance, _RECORDS)):
            return
        if isinstance(held := getattr(instance, "__dict__", None), dict):
            self.attributes(held, label, depth)
        self.slots(instance, label, depth)
        self.handlers(type(instance), label, depth)

    def attributes(self, held: dict[str, Any], label: str, depth: int) -> None:
        """Search the attributes ``held`` of an object."""

        def read() -> dict[str, Any]:
            return {n: v for n, v in held.items() if not is_hidden(n)}

        self.places.append(Names(label, read(), read, held.__setitem__, held.__delitem__))
        for name, value in read().items():
            self.value(value, f"{label}.{name}", depth + 1)

    def slots(self, instance: Any, label: str, depth: int) -> None:
        """Search the attributes of an object that have a slot in its class."""
        slots = {
            name: member
            for base in type(instance).__mro__
            for name, member in vars(base).items()
            if isinstance(member, types.MemberDescriptorType)
        }
        if not slots:
            return

        def read() -> dict[str, Any]:
            found = {}
            for name, member in slots.items():
                with contextlib.suppress(AttributeError):  # without a value
                    found[name] = member.__get__(instance)
            return found

        def write(name: str, value: Any) -> None:
            slots[name].__set__(instance, value)

        def remove(name: str) -> None:
            slots[name].__delete__(instance)

        self.places.append(Names(label, read(), read, write, remove))
        for name, value in read().items():
            self.value(value, f"{label}.{name}", depth + 1)

    def parts(self, bound: Any, label: str, depth: int) -> None:
        """Search what a bound method or a partial function is made of."""
        found = [getattr(bound, name, None) for name in _PART_NAMES]
        for part in (*found, *getattr(bound, "args", ())):
            if not isinstance(part, types.ModuleType):
                self.value(part, label, depth + 1)

    def own(self, value: Any, label: str, depth: int) -> None:
        """Note the state of an object that only functions of its own read."""
        make = next(make for kind, make in _OWN_STATE if isinstance(value, kind))
        self.note(make(value, label))

    def note(self, place: Place | None) -> None:
        """Note ``place``; None stands for none."""
        if place is not None:
            self.places.append(place)

    def net(self, module: torch.nn.Module, label: str, depth: int) -> None:
        """Note numbers and flags of a module, whose tensors the program itself may write."""
        held = vars(module)

        def read() -> dict[str, Any]:
            return {n: v for n, v in held.items() if isinstance(v, _SKIPPED)}

        self.places.append(Names(label, read(), read, held.__setitem__, held.__delitem__))

    def tensor(self, tensor: torch.Tensor) -> None:
        """Search the attributes of a wrapper subclass's tensor, except its inner tensors."""
        held = getattr(tensor, "__dict__", None)
        if not isinstance(held, dict):
            return
        parts, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        label = type(tensor).__qualname__

        def read() -> dict[str, Any]:
            return {n: v for n, v in held.items() if n not in parts and not is_hidden(n)}

        self.places.append(Names(label, read(), read, held.__setitem__, held.__delitem__))
        for name, value in read().items():
            self.value(value, f"{label}.{name}")

    def nothing(self, value: Any, label: str, depth: int) -> None:
        """Skip values without state of the user's."""


def _array(value: Any, label: str) -> Place:
    def write(contents: bytes) -> None:
        value[:] = contents if isinstance(value, bytearray) else array(value.typecode, contents)

    return Value(label, lambda: bytes(value), write)


def _variable(value: ContextVar[Any], label: str) -> Place:
    def read() -> dict[str, Any]:
        return {"value": value.get(None)}

    def write(_: str, held: Any) -> None:
        value.set(held)

    return Names(label, read(), read, write, lambda _: None)


def _stream(value: io.IOBase, label: str) -> Place | None:
    """A file is not set back, since what it has written may have been read."""
    if value.closed or not value.writable() or not value.seekable():
        return None

    def write(place: int) -> None:
        value.seek(place)
        value.truncate()

    return Value(label, value.tell, write if isinstance(value, io.StringIO | io.BytesIO) else None)


def _generator(value: types.GeneratorType[Any, Any, Any], label: str) -> Place:
    def read() -> Any:
        if (frame := value.gi_frame) is None:
            return None
        numbers = {n: v for n, v in frame.f_locals.items() if isinstance(v, _SKIPPED)}
        return frame.f_lasti, numbers

    return Value(label, read)


def _tensor(value: torch.Tensor, label: str) -> Place | None:
    """Elements: below a handler, writes do not count versions."""
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu"
    if not plain or value.layout is not torch.strided or value.numel() > _LARGE:
        return None

    def read() -> str:
        with without_modes():
            return repr(value.tolist())

    with without_modes(), torch.no_grad():
        before = value.clone()

    def write(_: str) -> None:
        with without_modes(), torch.no_grad():
            value.copy_(before)

    return Value(label, read, write)


def _of_numpy(value: Any, label: str) -> Place | None:
    """State of NumPy's arrays and generators, and of its global generator."""
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, types.ModuleType):
        kind, key, *rest = numpy.random.get_state()
        return Value(
            f"{label}.random",
            lambda: repr(numpy.random.get_state()),
            lambda _: numpy.random.set_state((kind, key, *rest)),
        )
    if isinstance(value, numpy.ndarray) and value.dtype != object and value.size <= _LARGE:
        before = value.copy()
        return Value(label, value.tobytes, lambda _: value.__setitem__(..., before))
    source = getattr(value, "bit_generator", None)
    if isinstance(value, numpy.random.Generator) and source is not None:
        state = source.state
        return Value(label, lambda: repr(source.state), lambda _: setattr(source, "state", state))
    return None


_OWN_STATE: tuple[tuple[Any, Callable[[Any, str], Place | None]], ...] = (
    (logging.Logger, lambda value, label: Records(label, value)),
    (random.Random, lambda value, label: Value(label, value.getstate, value.setstate)),
    ((bytearray, array), _array),
    (ContextVar, _variable),
    (io.IOBase, _stream),
    (types.GeneratorType, _generator),
    (itertools.count, lambda value, label: Value(label, lambda: repr(value))),
    (queue.SimpleQueue, lambda value, label: Value(label, value.qsize)),
    (torch.Tensor, _tensor),
)
"""Places for objects whose state no attribute has, by class."""

_OF_MODULES: dict[str, Callable[[], Place | None]] = {
    "random": lambda: Value("random", random.getstate, random.setstate),
    "numpy": lambda: _of_numpy(sys.modules["numpy"], "numpy"),
    "logging": lambda: Records("logging", logging.getLogger()),
}
"""Places for the state behind the functions of a module."""

_PARTS = (types.MethodType, types.BuiltinFunctionType, functools.partial, type(functools.cache(id)))

_PART_NAMES = ("__self__", "__func__", "__wrapped__", "func", "keywords")

_LOOKS: tuple[tuple[Any, Callable[[Search, Any, str, int], None]], ...] = (
    (types.FunctionType, Search.function),
    (type, Search.handlers),
    (_CONTAINERS, Search.container),
    (torch.nn.Module, Search.net),
    (types.ModuleType, Search.nothing),
    (_PARTS, Search.parts),
    (tuple(kind for kind, _ in _OWN_STATE), Search.own),
)
"""Search method for each kind of value; all others are objects with attributes."""


def is_hidden(name: str) -> bool:
    """Test for a member of Python's own or of Dynamo's."""
    return name.startswith("__") or "dynamo" in name


def functions_of(member: Any) -> Iterator[Any]:
    """Functions of a property or a method; any other member itself."""
    if isinstance(member, property):
        yield from (f for f in (member.fget, member.fset) if f is not None)
    else:
        yield getattr(member, "__func__", member)


_NAMES: weakref.WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, frozenset[str]]] = (
    weakref.WeakKeyDictionary()
)
"""Names in functions, with the code that has them: all classes are searched in each capture."""


def names_of(function: types.FunctionType) -> frozenset[str]:
    """Names that a function's code has, without those that pytest adds to assertions.

    The latter are no identifiers.
    """
    found = _NAMES.get(function)
    if found is None or found[0] is not function.__code__:
        code = function.__code__
        found = code, frozenset(name for name in _names_in(code) if name.isidentifier())
        _NAMES[function] = found
    return found[1]


def texts_of(function: types.FunctionType) -> frozenset[str]:
    """Texts in a function's code that may name an attribute."""
    return frozenset(text for text in _texts_in(function.__code__) if text.isidentifier())


def _texts_in(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _texts_in(constant)
        elif isinstance(constant, str):
            yield constant


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _collectors_names(space: dict[str, Any]) -> set[str]:
    """Names in ``space`` that callbacks of the garbage collector use, which runs at any time.

    Hypothesis, for one, measures the collector's time in a global.
    """
    callbacks = (f for f in gc.callbacks if isinstance(f, types.FunctionType))
    return {n for f in callbacks if f.__globals__ is space for n in _names_in(f.__code__)}


def kinds(base: type = torch.Tensor) -> Iterator[type]:
    """Tensor subclasses that users define."""
    kind: type
    for kind in base.__subclasses__():
        if is_users(kind.__module__):
            yield kind
        yield from kinds(kind)
