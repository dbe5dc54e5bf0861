"""State of users' programs that the handlers of tensor subclasses write when operations run.

``__torch_dispatch__`` and ``__torch_function__`` run while a program is captured, on tensors that
nobody asked for, and not when it runs. A handler that counts, or keeps a list, has to run as often
as the user's operations do: its program is not compiled, and what capture wrote is taken back.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tj_torch.ops.errors import CannotExpand
from tj_torch.runtime.subclasses import is_wrapper
from tj_torch.torch_private import ops as private

__all__ = ["changed_state", "same_tensors", "untouched"]

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_PLAIN = (int, float, complex, bool, str, bytes)
_DEPTH = 3
"""So deep are containers and objects looked into."""
_LARGE = 1000
"""The size from which a container is a table, whose elements are not looked into."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Names with their values: of a module, of a class, of an object or of a closure."""

    label: str
    values: dict[str, Any]
    read: Callable[[], dict[str, Any]]
    write: Callable[[str, Any], None]
    remove: Callable[[str], None]

    def changed(self) -> str | None:
        """The first name with another value."""
        now = self.read()
        names = (n for n in {**self.values, **now} if not _same(self.values, now, n))
        found = next(names, None)
        return None if found is None else f"{self.label}.{found}"

    def restore(self) -> None:
        """Give the names the values that they had."""
        now = self.read()
        for name in {**self.values, **now}:
            if name not in self.values:
                self.remove(name)
            elif name not in now or now[name] is not self.values[name]:
                self.write(name, self.values[name])


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of a container."""

    label: str
    container: Any
    copy: Any

    def changed(self) -> str | None:
        """The container's name, if it holds something else."""
        now = self.container
        if len(now) != len(self.copy):
            return self.label
        if isinstance(now, set):
            return self.label if now != self.copy else None
        if isinstance(now, dict):
            same = all(_same(self.copy, now, key) for key in now)
        else:
            same = all(map(_equal, self.copy, now))
        return None if same else self.label

    def restore(self) -> None:
        """Let the container hold what it held."""
        if self.changed():
            self.container.clear()
            fill = "extend" if isinstance(self.container, list | deque) else "update"
            getattr(self.container, fill)(self.copy)


_Place = _Names | _Contents


@dataclass(slots=True)
class _Search:
    """Collects the places that the members of users' tensor subclasses may write to."""

    places: list[_Place] = field(default_factory=list)
    seen: dict[int, Any] = field(default_factory=dict)

    def value(self, value: Any, label: str, depth: int = 0) -> None:
        """Look into ``value``, which the user calls ``label``."""
        if depth > _DEPTH or id(value) in self.seen or isinstance(value, (*_PLAIN, torch.Tensor)):
            return
        look = next((look for kind, look in _LOOKS if isinstance(value, kind)), _Search.instance)
        self.seen[id(value)] = value
        look(self, value, label, depth)

    def function(self, function: types.FunctionType, label: str, depth: int) -> None:
        """Look at the globals and the closure that a function of the user's names.

        Names that no program can write are those of pytest, which rewrites assertions.
        """
        if not _is_users(function.__module__):
            return
        names = {name for name in _names_in(function.__code__) if name.isidentifier()}
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

    def globals(self, space: dict[str, Any], names: set[str], module: str) -> None:
        """Look at those of ``names`` that are in the namespace of ``module``."""
        names = names - _collectors_names(space)

        def read() -> dict[str, Any]:
            return {name: space[name] for name in names if name in space}

        self.places.append(_Names(module, read(), read, space.__setitem__, space.__delitem__))
        for name, value in read().items():
            self.value(value, f"{module}.{name}")

    def cell(self, cell: types.CellType, label: str) -> None:
        """Look at a variable of a closure."""

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
        """Look at the data and the functions of a class of the user's, and of its bases."""
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
        """Look at the elements of a container."""
        self.places.append(_Contents(label, container, container.copy()))
        if len(container) <= _LARGE:
            values = container.values() if isinstance(container, dict) else container
            for element in list(values):
                self.value(element, label, depth + 1)

    def instance(self, instance: Any, label: str, depth: int) -> None:
        """Look at the attributes of an object of a class of the user's."""
        held = getattr(instance, "__dict__", None)
        if not isinstance(held, dict) or not _is_users(type(instance).__module__):
            return

        def read() -> dict[str, Any]:
            return dict(held)

        self.places.append(_Names(label, read(), read, held.__setitem__, held.__delitem__))
        for name, value in read().items():
            self.value(value, f"{label}.{name}", depth + 1)

    def tensor(self, tensor: torch.Tensor) -> None:
        """Look at the attributes of a tensor of a wrapper subclass, but for the parts it is of."""
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
        """Pass over what holds no state of the user's."""


_LOOKS: tuple[tuple[Any, Callable[[_Search, Any, str, int], None]], ...] = (
    (types.FunctionType, _Search.function),
    (type, _Search.handlers),
    (_CONTAINERS, _Search.container),
    ((types.ModuleType, types.BuiltinFunctionType, torch.nn.Module), _Search.nothing),
)
"""The way to look into each kind of values; others are objects with attributes."""


def _same(before: dict[Any, Any], now: dict[Any, Any], name: Any) -> bool:
    return name in before and name in now and _equal(before[name], now[name])


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)


def _is_hidden(name: str) -> bool:
    """Tell whether a member is Python's, or a mark of Dynamo's."""
    return name.startswith("__") or "dynamo" in name


def _is_users(module: Any) -> bool:
    """Tell whether what ``module`` defines may be the user's."""
    top = str(module).partition(".")[0]
    return top not in sys.stdlib_module_names and top not in ("torch", "tj_core", "tj_torch")


def _functions_of(member: Any) -> Iterator[Any]:
    """The functions that a member of a class consists of; other members themselves."""
    if isinstance(member, property):
        yield from (f for f in (member.fget, member.fset) if f is not None)
    else:
        yield getattr(member, "__func__", member)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _collectors_names(space: dict[str, Any]) -> set[str]:
    """Names in ``space`` of the functions that the garbage collector calls, which is at any time.

    Hypothesis, for one, takes the collector's time, and keeps it in a global.
    """
    callbacks = (f for f in gc.callbacks if isinstance(f, types.FunctionType))
    return {n for f in callbacks if f.__globals__ is space for n in _names_in(f.__code__)}


def _kinds(base: type = torch.Tensor) -> Iterator[type]:
    """The subclasses of tensors that users define."""
    kind: type
    for kind in base.__subclasses__():
        if _is_users(kind.__module__):
            yield kind
        yield from _kinds(kind)


_WINDOWS: list[list[_Place]] = []
"""The states at the beginning of the captures that run, the outer ones first; under their lock."""


@contextlib.contextmanager
def untouched(given: Iterable[Any] = ()) -> Iterator[None]:
    """Leave the state that handlers write as it is found, and that of tensors among ``given``.

    To be entered under Dynamo's lock.
    """
    search = _Search()
    for kind in _kinds():
        search.value(kind, kind.__qualname__)
    _look_at(search, given)
    _WINDOWS.append(search.places)
    try:
        with private.same_masks():
            yield
    finally:
        _WINDOWS.pop()
        for place in search.places:
            place.restore()


def changed_state() -> str | None:
    """The name of what handlers have written since the capture that runs began; None if nothing."""
    return _first_changed(place for places in _WINDOWS for place in places)


@contextlib.contextmanager
def same_tensors(given: Iterable[torch.Tensor]) -> Iterator[None]:
    """See that the tensors of wrapper subclasses in ``given`` know the same afterwards.

    :raises CannotExpand: naming what was written; it is taken back.
    """
    search = _Search()
    _look_at(search, given)
    try:
        with private.same_masks() as masked:
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
