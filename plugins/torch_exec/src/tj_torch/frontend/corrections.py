"""Corrections of TorchDynamo, for the time of one capture; a part of `tj_torch.frontend.dynamo`.

Each is about something that Dynamo would get wrong without a word: a condition that it reads and
does not guard, a value that it loses, a draw of random numbers that it makes once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Lookup", "Noticed", "noticing"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A member that the program reads from a class: ``found``, before any descriptor acts.

    ``without`` are the classes that were looked at before, and do not have it themselves; none,
    where ``cls`` was looked through as Python does it, with all its bases.
    """

    cls: type
    name: str
    found: Any
    without: tuple[type, ...] = ()


@dataclass(slots=True)
class Noticed:
    """What one capture came across beside its graph."""

    lookups: dict[tuple[type, str], Lookup] = field(default_factory=dict)
    uninitialized: bool = False

    def look_up(self, lookup: Lookup) -> None:
        """Note ``lookup``, unless it found nothing, or only data, which Dynamo guards."""
        if hasattr(type(lookup.found), "__get__"):
            self.lookups.setdefault((lookup.cls, lookup.name), lookup)


@contextlib.contextmanager
def noticing() -> Iterator[Noticed]:
    """Apply all corrections; what is given is filled while a program is captured."""
    noticed = Noticed()
    with ExitStack() as stack:
        _notice_lookups(stack, noticed)
        _refuse_uninitialized_modules(stack, noticed)
        _guard_missing_keys(stack)
        _keep_dicts_of_new_objects(stack)
        yield noticed


def _replace(
    stack: ExitStack, owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]
) -> None:
    """Set ``owner.name`` to what ``make`` makes of it, until ``stack`` is left."""
    original = owner.__dict__[name]
    stack.callback(setattr, owner, name, original)
    setattr(owner, name, make(original))


# --------------------------------------------------------------------------- class members


def _notice_lookups(stack: ExitStack, noticed: Noticed) -> None:
    """Note where members of classes are found: Dynamo guards their code, not where they are."""
    from torch._dynamo.variables import user_defined
    from torch._dynamo.variables.misc import SuperVariable

    def of_object(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup_class_mro_attr(self: Any, name: str) -> object:
            found: object = original(self, name)
            noticed.look_up(Lookup(type(self.value), name, found))
            return found

        return lookup_class_mro_attr

    def of_class(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup_cls_mro_attr(self: Any, name: str) -> object:
            found: object = original(self, name)
            noticed.look_up(Lookup(self.value, name, found))
            return found

        return lookup_cls_mro_attr

    def of_super(original: Callable[..., Any]) -> Callable[..., Any]:
        def resolved(self: Any, tx: Any, name: str) -> Any:
            result = original(self, tx, name)
            lookup = _after(self, name)
            if lookup is not None:
                noticed.look_up(lookup)
            return result

        return resolved

    user = user_defined.UserDefinedObjectVariable
    _replace(stack, user, "lookup_class_mro_attr", of_object)
    _replace(stack, user_defined.UserDefinedClassVariable, "lookup_cls_mro_attr", of_class)
    _replace(stack, SuperVariable, "_resolved_getattr_and_source", of_super)


def _after(variable: Any, name: str) -> Lookup | None:
    """What ``super()`` finds: in the classes after its own, in the order of resolution."""
    owner = variable.objvar.python_type()
    if issubclass(owner, type):
        owner = variable.objvar.value
    classes = owner.__mro__
    own = variable.typevar.as_python_constant()
    start = classes.index(own) + 1 if own in classes else 0
    for i, cls in enumerate(classes[start:], start):
        if name in vars(cls):
            return Lookup(cls, name, vars(cls)[name], classes[start:i])
    return None


# --------------------------------------------------------------------------- modules


def _refuse_uninitialized_modules(stack: ExitStack, noticed: Noticed) -> None:
    """Stop at a lazy module: Dynamo would initialise it and give the random numbers back."""
    from torch._dynamo import exc
    from torch._dynamo.variables import nn_module

    def refuse(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(tx: Any, mod: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if hasattr(mod, "_initialize_hook"):
                noticed.uninitialized = True
                raise exc.Unsupported(f"{type(mod).__name__} gets its parameters in this call")
            original(tx, mod, args, kwargs)

        return initialize

    _replace(stack, nn_module, "initialize_lazy_module", refuse)


# --------------------------------------------------------------------------- dicts


def _guard_missing_keys(stack: ExitStack) -> None:
    """Guard on a key that ``d[key]`` does not find, where the program catches the error."""
    from torch._dynamo.variables.dicts import ConstDictVariable
    from torch._dynamo.variables.dicts import HashableTracker

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def getitem(self: Any, tx: Any, arg: Any) -> Any:
            if HashableTracker(arg) not in self.items:
                self.install_dict_contains_guard(tx, [arg])
            return original(self, tx, arg)

        return getitem

    _replace(stack, ConstDictVariable, "getitem_const_raise_exception_if_absent", guarded)


def _keep_dicts_of_new_objects(stack: ExitStack) -> None:
    """Return ``vars(x)`` of an object that the program makes as that object's, filled."""
    from torch._dynamo.variables.dicts import DunderDictVariable

    def owned(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, vt: Any, *args: Any, **kwargs: Any) -> None:
            original(self, vt, *args, **kwargs)
            self.owner = vt  # by which Dynamo sees that the object is still needed

        return init

    def reconstruct(self: Any, codegen: Any) -> None:
        codegen(self.owner)
        codegen.append_output(codegen.create_load_attr("__dict__"))

    _replace(stack, DunderDictVariable, "__init__", owned)
    stack.callback(delattr, DunderDictVariable, "reconstruct")
    DunderDictVariable.reconstruct = reconstruct  # type: ignore[method-assign]
