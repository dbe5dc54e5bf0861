"""Attributes that a program has set on a class, read through others that have them.

Dynamo finds what a program sets on a class through that class alone: objects, derived classes and
``super()`` have what the class had before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["leave_set_attributes"]


def leave_set_attributes(stack: ExitStack) -> None:
    """Give derived classes what a program set on a class; break the graph for objects of it."""
    from tj_torch.torch_private.dynamo import SuperVariable, user_defined

    for owner, name in releases.member_lookups()[0]:
        replace(stack, owner, name, _of_object)
    releases.attributes(stack, user_defined.UserDefinedClassVariable, _of_class, subclasses=True)
    replace(stack, SuperVariable, "_resolved_getattr_and_source", _of_super)


def _of_object(original: Callable[..., Any]) -> Callable[..., Any]:
    def lookup(self: Any, *args: Any) -> Any:
        _stop_if_set(type(self.value).__mro__, args[-1])
        return original(self, *args)

    return lookup


def _of_class(original: Callable[..., Any]) -> Callable[..., Any]:
    def attribute(self: Any, tx: Any, name: str) -> Any:
        # What is set on the class itself, Dynamo finds there. It would pass over a graph break:
        # attributes of classes are constants to `getattr`.
        if _set_on(self.value, name) is None and name not in vars(self.value):
            variable = _first_set(self.value.__mro__[1:], name)
            if variable is not None:
                return tx.output.side_effects.load_attr(variable, name)
        return original(self, tx, name)

    return attribute


def _of_super(original: Callable[..., Any]) -> Callable[..., Any]:
    def lookup(self: Any, tx: Any, name: str) -> Any:
        owner = self.objvar.python_type()
        if issubclass(owner, type):
            # `super()` in a class method: the object is the class itself.
            owner = self.objvar.value
        own = self.typevar.as_python_constant()
        if own in owner.__mro__:
            _stop_if_set(owner.__mro__[owner.__mro__.index(own) + 1 :], name)
        return original(self, tx, name)

    return lookup


def _stop_if_set(classes: Iterable[type], name: str) -> None:
    """Break the graph if the first of ``classes`` that has ``name`` got it from the program."""
    variable = _first_set(classes, name)
    if variable is not None:
        cls = variable.value.__qualname__
        stop(f"{cls}.{name} was set before, and is read from elsewhere")


def _first_set(classes: Iterable[type], name: str) -> Any:
    """Variable of the first of ``classes`` that has ``name`` if the program has set it."""
    for cls in classes:
        variable = _set_on(cls, name)
        if variable is not None or name in vars(cls):
            return variable
    return None


def _set_on(cls: type, name: str) -> Any:
    """Variable of a class, if the program has set ``name`` on it."""
    from tj_torch.torch_private.dynamo import InstructionTranslator

    effects = InstructionTranslator.current_tx().output.side_effects
    variable = effects.id_to_variable.get(id(cls))
    if variable is None or not effects.has_pending_mutation_of_attr(variable, name):
        return None
    return variable
