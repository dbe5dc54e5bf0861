"""Detect and undo writes to users' state by the handlers of tensor subclasses.

``__torch_dispatch__`` and ``__torch_function__`` run at capture, on fake tensors, and not when the
compiled program runs. A handler that counts, or appends to a list, must run once per operation: its
program is not compiled, and writes of the capture are undone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tj_torch.ops.errors import CannotExpand
from tj_torch.runtime.beside import is_beside
from tj_torch.runtime.subclasses import is_wrapper
from tj_torch.torch_private import ops as private

__all__ = ["changed_state", "same_tensors", "untouched"]

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_PLAIN = (int, float, complex, bool, str, bytes)
_SKIPPED = (*_PLAIN, torch.Tensor)
_DEPTH = 3
"""Depth of nesting to which containers and objects are searched."""
_LARGE = 1000
"""Size beyond which the elements of a container are not searched."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Variables with their values, of a module, a class, an object or a closure."""

    label: str
    values: dict[str, Any]
    read: Callable[[], dict[str, Any]]
    write: Callable[[str, Any], None]
    remove: Callable[[str], None]

    def changed(self) -> str | None:
        """First variable with another value, None if there is none."""
        now = self.read()
        names = (n for n in {**self.values, **now} if not _same(self.values, now, n))
        found = next(names, None)
        return None if found is None else f"{self.label}.{found}"

    def restore(self) -> None:
        """Set the variables back to their values."""
        now = self.read()
        for name in {**self.values, **now}:
            if name not in self.values:
                self.remove(name)
            elif name not in now or now[name] is not self.values[name]:
                self.write(name, self.values[name])


@dataclass(frozen=True, slots=True)
class _Contents:
    """Contents of a container."""

    label: str
    container: Any
    copy: Any

    def changed(self) -> str | None:
        """Name of the container if its contents have changed, else None."""
        now = self.container
        if len(now) != len(self.copy):
            return self.label
        if isinstance(now, set):
            return self.label if now != self.copy else None
        if isinstance(now, dict):
            same = all(_same(self.copy, now, key) for key in now)
        else:
            # `is` and not `==`, which may be the user's, or a tensor's.
            same = all(map(_equal, self.copy, now))
        return None if same else self.label

    def restore(self) -> None:
        """Set the container back to its contents."""
        if self.changed():
            self.container.clear()
            fill = "extend" if isinstance(self.container, list | deque) else "update"
            getattr(self.container, fill)(self.copy)


_Place = _Names | _Contents


@dataclass(slots=True)
class _Search:
    """Search for the places that methods of users' tensor subclasses may write to."""

    places: list[_Place] = field(default_factory=list)
    seen: dict[int, Any] = field(default_factory=dict)

    def value(self, value: Any, label: str, depth: int = 0) -> None:
        """Search ``value``, called ``label`` in messages."""
        if depth > _DEPTH or id(value) in self.seen or isinstance(value, _SKIPPED):
            return
        # Kept, so that no other object gets its id during the search.
        self.seen[id(value)] = value
        for kind, look in _LOOKS:
            if isinstance(value, kind):
                look(self, value, label, depth)
                return
        self.instance(value, label, depth)

    def function(self, function: types.FunctionType, label: str, depth: int) -> None:
        """Search the globals and the closure that a user's function refers to."""
        if not _is_users(function.__module__):
            return
        names = _names_of(function)
        space = function.__globals__
        self.globals(space, names, function.__module__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self.cell(cell, name)
        for name in names & space.keys():
            value = space[name]
            if isinstance(value, types.ModuleType) and _is_users(value.__name__):
                self.globals(vars(value), names, value.__name__)

    def globals(self, space: dict[str, Any], names: frozenset[str], module: str) -> None:
        """Search the globals ``names`` of ``module``, whose namespace is ``space``."""
        # A collection in the middle of a capture would look like a write of the handler.
        names = names - _collectors_names(space)

        def read() -> dict[str, Any]:
            return {name: space[name] for name in names if name in space}

        self.places.append(_Names(module, read(), read, space.__setitem__, space.__delitem__))
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

        self.places.append(_Names("closure", read(), read, write, remove))
        for value in read().values():
            self.value(value, label)

    def handlers(self, kind: type, label: str, depth: int) -> None:
        """Search attributes and methods of a user's class and of its bases."""
        for base in kind.__mro__:
            if _is_users(base.__module__):
                self._members(base)

    def _members(self, base: type) -> None:
        def read() -> dict[str, Any]:
            return {n: v for n, v in vars(base).items() if not _is_hidden(n)}

        def write(name: str, value: Any) -> None:
            setattr(base, name, value)

        def remove(name: str) -> None:
            delattr(base, name)

        self.places.append(_Names(base.__qualname__, read(), read, write, remove))
        for name, member in list(vars(base).items()):
            for inner in _functions_of(member):
                self.value(inner, f"{base.__qualname__}.{name}")

    def container(self, container: Any, label: str, depth: int) -> None:
        """Search a container and its elements."""
        self.places.append(_Contents(label, container, container.copy()))
        if len(container) <= _LARGE:
            values = container.values() if isinstance(container, dict) else container
            for element in list(values):
                self.value(element, label, depth + 1)

    def instance(self, instance: Any, label: str, depth: int) -> None:
        """Search the attributes of an object of a user's class."""
        held = getattr(instance, "__dict__", None)
        if not isinstance(held, dict) or not _is_users(type(instance).__module__):
            return

        def read() -> dict[str, Any]:
            return dict(held)

        self.places.append(_Names(label, read(), read, held.__setitem__, held.__delitem__))
        for name, value in read().items():
            self.value(value, f"{label}.{name}", depth + 1)

    def tensor(self, tensor: torch.Tensor) -> None:
        """Search the attributes of a wrapper subclass's tensor, except its inner tensors."""
        held = getattr(tensor, "__dict__", None)
        if not isinstance(held, dict):
            return
        parts, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        label = type(tensor).__qualname__

        def read() -> dict[str, Any]:
            return {n: v for n, v in held.items() if n not in parts and not _is_hidden(n)}

        self.places.append(_Names(label, read(), read, held.__setitem__, held.__delitem__))
        for name, value in read().items():
            self.value(value, f"{label}.{name}")

    def nothing(self, value: Any, label: str, depth: int) -> None:
        """Skip values without state of the user's."""


_LOOKS: tuple[tuple[Any, Callable[[_Search, Any, str, int], None]], ...] = (
    (types.FunctionType, _Search.function),
    (type, _Search.handlers),
    (_CONTAINERS, _Search.container),
    ((types.ModuleType, types.BuiltinFunctionType, torch.nn.Module), _Search.nothing),
)
"""Search method for each kind of value; all others are objects with attributes."""


def _same(before: dict[Any, Any], now: dict[Any, Any], name: Any) -> bool:
    return name in before and name in now and _equal(before[name], now[name])


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)


def _is_hidden(name: str) -> bool:
    """Test for a member of Python's own or of Dynamo's."""
    return name.startswith("__") or "dynamo" in name


def _is_users(module: Any) -> bool:
    """Test for a module of the user's, not of Python, PyTorch or tj."""
    return _is_users_name(str(module))


@functools.cache
def _is_users_name(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in ("torch", "tj_core", "tj_torch")


def _functions_of(member: Any) -> Iterator[Any]:
    """Functions of a property or a method; any other member itself."""
    if isinstance(member, property):
        yield from (f for f in (member.fget, member.fset) if f is not None)
    else:
        yield getattr(member, "__func__", member)


_NAMES: weakref.WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, frozenset[str]]] = (
    weakref.WeakKeyDictionary()
)
"""Names in functions, with the code that has them: all classes are searched in each capture."""


def _names_of(function: types.FunctionType) -> frozenset[str]:
    """Names that a function's code has, without those that pytest adds to assertions.

    The latter are no identifiers.
    """
    found = _NAMES.get(function)
    if found is None or found[0] is not function.__code__:
        code = function.__code__
        found = code, frozenset(name for name in _names_in(code) if name.isidentifier())
        _NAMES[function] = found
    return found[1]


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


def _kinds(base: type = torch.Tensor) -> Iterator[type]:
    """Tensor subclasses that users define."""
    kind: type
    for kind in base.__subclasses__():
        if _is_users(kind.__module__):
            yield kind
        yield from _kinds(kind)


_WINDOWS: list[list[_Place]] = []
"""States at the start of running captures, outermost first; guarded by Dynamo's lock."""


@contextlib.contextmanager
def untouched(given: Iterable[Any] = ()) -> Iterator[None]:
    """Restore, at exit, the state that handlers write, and that of tensors among ``given``.

    Must be entered under Dynamo's lock. Beside the program it is the program that writes, and
    nothing is restored; `changed_state` tells of writes all the same.
    """
    search = _Search()
    for kind in _kinds():
        search.value(kind, kind.__qualname__)
    _look_at(search, given)
    _WINDOWS.append(search.places)
    try:
        with private.symbols_for_placements(), private.same_masks():
            yield
    finally:
        _WINDOWS.pop()
        for place in () if is_beside() else search.places:
            place.restore()


def changed_state() -> str | None:
    """Name of a variable that handlers have written since the running capture began, or None."""
    return _first_changed(place for places in _WINDOWS for place in places)


@contextlib.contextmanager
def same_tensors(given: Iterable[torch.Tensor]) -> Iterator[None]:
    """Check that attributes of wrapper subclasses in ``given`` are unchanged at exit.

    :raises CannotExpand: naming the attribute that was written; the write is undone.
    """
    search = _Search()
    _look_at(search, given)
    try:
        with private.symbols_for_placements(), private.same_masks() as masked:
            yield
            if masked():
                raise CannotExpand("a placement keeps a mask for the next call")
        if name := _first_changed(search.places):
            raise CannotExpand(f"operations on a tensor subclass change {name}")
    finally:
        for place in search.places:
            place.restore()


def _look_at(search: _Search, given: Iterable[Any]) -> None:
    for value in given:
        if isinstance(value, torch.Tensor) and is_wrapper(value):
            search.tensor(value)


def _first_changed(places: Iterable[_Place]) -> str | None:
    return next(filter(None, (place.changed() for place in places)), None)
