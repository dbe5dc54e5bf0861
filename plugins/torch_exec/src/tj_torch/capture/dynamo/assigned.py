"""Attributes that cannot be set or deleted: graph breaks where Dynamo does not see that.

What a program sets, Dynamo sets once the graph has run, behind all handlers of the program's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from tj_torch.capture.dynamo.patches import forget_handlers, leave_frames, replace, stop
from tj_torch.capture.dynamo.versions import attribute_changes

__all__ = ["leave_unassignable"]


def leave_unassignable(stack: ExitStack) -> None:
    """Break the graph where an attribute is deleted, or set on what refuses it in its own way.

    That a deleted attribute was there Dynamo does not guard. Where its names are others than here,
    functions that do either are left.
    """
    places = {name: attribute_changes(name) for name in ("setattr", "delattr")}
    forget_handlers(stack, setattr, delattr)
    for name, place in places.items():
        if place is None:
            leave_frames(stack, _uses(name), "sets or deletes attributes unseen by this PyTorch")
        else:
            replace(stack, *place, _looking(name))


def _looking(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, tx: Any, obj: Any, attribute: Any, *value: Any) -> Any:
            if not value and not _is_new(obj):
                stop(f"an attribute of {_kind(obj)} is deleted")
            if _refuses(obj, f"__{name}__", attribute, *value):
                stop(f"{name} of {_kind(obj)} is the program's own")
            return original(self, tx, obj, attribute, *value)

        return call

    return looking


def _is_new(variable: Any) -> bool:
    """Tell whether the program makes the object itself."""
    from tj_torch.torch_private.dynamo import AttributeMutationNew

    return isinstance(variable.mutation_type, AttributeMutationNew)


def _refuses(variable: Any, method: str, attribute: Any, value: Any = None) -> bool:
    """Tell whether an object may refuse to be changed, in a way that Dynamo does not follow.

    An exception refuses some ``args``, a tensor what is no gradient of it; a class has a metaclass,
    and deleting has a method.
    """
    from tj_torch.torch_private.dynamo import TensorVariable, user_defined

    if isinstance(variable, TensorVariable) and value is not None:
        return _name(attribute) == "grad" and not _is_gradient(value, variable)
    if _name(attribute) == "args":
        return issubclass(variable.python_type(), BaseException)
    if isinstance(variable, user_defined.UserDefinedClassVariable):
        return getattr(type(variable.value), method) is not getattr(type, method)
    if not isinstance(variable, user_defined.UserDefinedObjectVariable):
        return issubclass(variable.python_type(), tuple)  # a named one
    if not _has_room(variable, _name(attribute)):  # which Dynamo does not see up to 2.11
        return True
    if method == "__delattr__":
        usual: tuple[Any, ...] = (object.__delattr__, torch.nn.Module.__delattr__)
        return type(variable.value).__delattr__ not in usual
    return False


def _has_room(variable: Any, name: Any) -> bool:
    """Tell whether an object, one that the program makes or has, can have the attribute.

    It has a dict, or its class something that takes it, as a slot does.
    """
    kind = variable.python_type()
    if getattr(kind, "__dictoffset__", 1) != 0 or not isinstance(name, str):
        return True
    return hasattr(getattr(kind, name, None), "__set__")


def _name(attribute: Any) -> Any:
    return attribute.as_python_constant() if attribute.is_python_constant() else None


def _is_gradient(value: Any, tensor: Any) -> bool:
    """Tell whether a tensor takes ``value`` as its ``grad``; as in `THPVariable_set_grad`."""
    from tj_torch.torch_private.dynamo import ConstantVariable, TensorVariable

    if not isinstance(value, TensorVariable):
        return isinstance(value, ConstantVariable) and value.value is None
    grad, own = (v.as_proxy().node.meta["example_value"] for v in (value, tensor))
    facts = [(t.dtype, t.device, tuple(t.shape), t.layout) for t in (grad, own)]
    return bool(facts[0] == facts[1]) and grad is not own


def _kind(variable: Any) -> str:
    value = getattr(variable, "value", None)
    return value.__qualname__ if isinstance(value, type) else variable.python_type_name()


def _uses(name: str) -> Callable[[Any], bool]:
    opname = {"setattr": "STORE_ATTR", "delattr": "DELETE_ATTR"}[name]

    def uses(instruction: Any) -> bool:
        called = instruction.opname.startswith("LOAD_") and instruction.argval == name
        return called or instruction.opname == opname

    return uses
