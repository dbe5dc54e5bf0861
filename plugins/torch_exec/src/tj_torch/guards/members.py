"""Guards that look-ups in classes still find the members that capture found.

Dynamo guards the code of a method in its class. It does not guard against an override in an earlier
class of the resolution order, against a new member, or against changes of members that are found by
``super``, operators and class methods.
"""

from __future__ import annotations

import enum
import keyword
import sys
import types
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tj_torch.guards.guard import Guards

__all__ = [
    "Absent",
    "Condition",
    "Lookup",
    "found_in",
    "guard_members",
    "guard_methods",
    "guard_sizes",
    "is_pythons",
    "is_pytorchs",
    "is_replaceable",
    "member_conditions",
    "running_members",
    "size_conditions",
]

_IMMUTABLE = 1 << 8
"""``Py_TPFLAGS_IMMUTABLETYPE``, the flag of classes whose members cannot be replaced."""


class Absent:
    """Mark for a look-up that finds nothing."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Member that the program reads from a class: ``found``, without descriptors acting.

    `Absent` if there is none. ``without`` are earlier classes in the resolution order, which lack
    the member. ``fixed``: Dynamo has no guard on the data. ``hidden``: an object has an attribute
    of that name, which is found unless the class has a property.
    """

    cls: type
    name: str
    found: Any
    without: tuple[type, ...] = ()
    fixed: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """Guard that ``expression`` over ``owner`` is ``value`` by identity; ``text`` is printed."""

    expression: str
    owner: Any
    value: Any
    text: str


def guard_members(guards: Guards, lookups: Iterable[Lookup]) -> None:
    """Guard that each of ``lookups`` finds the same member."""
    _guard(guards, member_conditions(lookups))


def member_conditions(lookups: Iterable[Lookup]) -> Iterator[Condition]:
    """Conditions that each of ``lookups`` finds the same member, where it may be replaced."""
    for lookup in map(_general, lookups):
        yield from (c for c in _conditions(lookup) if is_replaceable(c.owner))


def size_conditions(classes: Iterable[type]) -> Iterator[Condition]:
    """Conditions that ``classes`` and their bases get no new member, such as an ``__eq__``.

    Python asks for those that a class lacks, too, and Dynamo asks in many places.
    """
    for cls in dict.fromkeys(base for derived in classes for base in derived.__mro__):
        if is_replaceable(cls) and not is_pytorchs(cls):
            yield _of_size(cls)


def guard_sizes(guards: Guards, classes: Iterable[type]) -> None:
    """Guard that ``classes`` and their bases get no new member."""
    _guard(guards, size_conditions(classes))


def guard_methods(guards: Guards, classes: Iterable[type]) -> None:
    """Guard that ``classes`` have the same methods as now, and no others."""
    changes = (c for cls in classes for c in _unchanged(cls))
    _guard(guards, (c for c in changes if is_replaceable(c.owner)))


def _guard(guards: Guards, conditions: Iterable[Condition]) -> None:
    guards.scope |= {"found_in": found_in, "Absent": Absent}
    for c in conditions:
        read = c.expression.format(owner=guards.bind("c", c.owner))
        guards.add(f"{read} is {guards.bind('v', c.value)}", text=c.text)


def _general(lookup: Lookup) -> Lookup:
    """One lookup in `torch.nn.Module` for all of PyTorch's classes that inherit the member."""
    module = torch.nn.Module
    if is_pytorchs(lookup.cls) and vars(module).get(lookup.name) is lookup.found:
        return Lookup(module, lookup.name, lookup.found)
    return lookup


def is_pytorchs(cls: type) -> bool:
    """Test for a class of PyTorch's own."""
    return cls.__module__.partition(".")[0] == "torch"


def is_pythons(cls: type) -> bool:
    """Test for a class of Python's standard library."""
    return cls.__module__.partition(".")[0] in sys.stdlib_module_names


def is_replaceable(cls: type) -> bool:
    """Test for a class whose members a program may replace: none of the standard library's."""
    return not cls.__flags__ & _IMMUTABLE and not is_pythons(cls)


def _conditions(lookup: Lookup) -> Iterator[Condition]:
    data = lookup.found is Absent or not hasattr(type(lookup.found), "__get__")
    if data and not (lookup.fixed and isinstance(lookup.found, _CONSTANTS)):
        if not is_pytorchs(lookup.cls):
            yield from _of_data(lookup)
        return
    member = _of_descriptor(lookup)
    yield member
    if isinstance(lookup.found, types.FunctionType) and not is_pytorchs(lookup.cls):
        # A notebook that loads an edited module again gives the function other code.
        code, text = lookup.found.__code__, f"{lookup.cls.__qualname__}.{lookup.name} has its code"
        yield Condition(f"{member.expression}.__code__", member.owner, code, text)
    if lookup.cls not in lookup.without:  # `super()`; else the first condition includes it
        yield from (_lacks(cls, lookup.name) for cls in lookup.without)


_CONSTANTS = (int, float, complex, str, bytes, enum.Enum, type(None), type(...), torch.dtype)
"""Types that Dynamo treats as constants of the program."""


def _unchanged(cls: type) -> Iterator[Condition]:
    """Conditions that ``cls`` has the same methods as now, and the same number of members."""
    for name, found in vars(cls).items():
        if isinstance(found, (*_PASSIVE, classmethod)):
            yield _of_descriptor(Lookup(cls, name, found))
    yield _of_size(cls)


def _of_size(cls: type) -> Condition:
    """Condition that no member was added, which is cheaper to check than each name."""
    count = len(vars(cls))
    text = f"{cls.__qualname__} has {count} members"
    return Condition(f"(len({{owner}}.__dict__) == {count})", cls, True, text)


def _of_data(lookup: Lookup) -> Iterator[Condition]:
    """Conditions that data is found in the same class; Dynamo guards its value."""
    if lookup.found is Absent:
        yield _absent(lookup.cls, lookup.name)
    elif not is_pytorchs(_definer(lookup)):
        yield from (_lacks(cls, lookup.name) for cls in lookup.without)
        if lookup.hidden:
            yield _of_same_type(_definer(lookup), lookup)


def _of_same_type(cls: type, lookup: Lookup) -> Condition:
    """Condition that data in ``cls`` has become no property, which no object's own would hide."""
    name, kind = lookup.name, type(lookup.found)
    text = f"{cls.__qualname__}.{name} is of type {kind.__qualname__}"
    return Condition(f"type({{owner}}.__dict__.get({name!r}))", cls, kind, text)


def _definer(lookup: Lookup) -> type:
    return next(base for base in lookup.cls.__mro__ if lookup.name in vars(base))


def _lacks(cls: type, name: str) -> Condition:
    text = f"{cls.__qualname__} has no {name} of its own"
    return Condition(f"({name!r} in {{owner}}.__dict__)", cls, False, text)


def _absent(cls: type, name: str) -> Condition:
    text = f"{cls.__qualname__} has no {name}"
    if _is_plain(cls) and getattr(cls, name, Absent) is Absent:
        return Condition(f"getattr({{owner}}, {name!r}, Absent)", cls, Absent, text)
    return Condition(f"found_in({{owner}}, {name!r})", cls, Absent, text)


def _of_descriptor(lookup: Lookup) -> Condition:
    """Condition that a descriptor is the same, by the cheapest expression."""
    cls, name, found = lookup.cls, lookup.name, lookup.found
    text = f"{cls.__qualname__}.{name} is unchanged"
    if _is_plain(cls) and isinstance(found, _PASSIVE) and _is_name(name):
        read = getattr(cls, name, Absent)
        # An attribute is read faster than `found_in` searches, and finds the same here.
        if read is found:
            return Condition(f"{{owner}}.{name}", cls, found, text)
        if isinstance(found, staticmethod) and read is found.__func__:
            return Condition(f"{{owner}}.{name}", cls, read, text)
    return Condition(f"found_in({{owner}}, {name!r})", cls, found, text)


_PASSIVE = (
    types.FunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    property,
    staticmethod,
)
"""Members that run none of the program's code when they are read from a class."""


def _is_plain(cls: type) -> bool:
    """Test if reading from ``cls`` runs no method of its metaclass."""
    kind = type(cls)
    return kind.__getattribute__ is type.__getattribute__ and not hasattr(kind, "__getattr__")


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def found_in(cls: type, name: str) -> object:
    """Raw member ``name`` of ``cls`` or its bases, without descriptors acting; else `Absent`."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return Absent


def running_members(classes: Iterable[type], codes: Container[types.CodeType]) -> Iterator[Lookup]:
    """Members of ``classes`` whose code is among ``codes``.

    Members of PyTorch's classes are looked up there, not in each class of the program.
    """
    for cls in classes:
        owners = {name: base for base in reversed(cls.__mro__) for name in vars(base)}
        for name, owner in owners.items():
            found = vars(owner)[name]
            if any(code in codes for code in _codes(found)):
                yield Lookup(owner if is_pytorchs(owner) else cls, name, found)


def _codes(member: Any) -> Iterator[types.CodeType]:
    """Code of a function, or of the functions in a property, class method or the like."""
    functions = (getattr(member, name, None) for name in ("__func__", "fget", "fset", "fdel"))
    for function in (member, *functions):
        if isinstance(function, types.FunctionType):
            yield function.__code__
