"""Break the graph where setting or deleting an attribute may raise unseen by Dynamo.

Dynamo sets attributes after the graph has run, outside of the program's handlers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.patches import forget_handlers, leave_frames, stop
from tj_torch.capture.dynamo.releases import attribute_changes
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["leave_unassignable"]


def leave_unassignable(stack: ExitStack) -> None:
    """Break the graph where an attribute is deleted, or set on an object that may refuse it.

    Dynamo does not guard that a deleted attribute exists. Where it lacks the names used here,
    functions that set or delete attributes are not captured.
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
            if _is_function(obj) and not _fits_function(_name(attribute), *value):
                stop(f"{name} changes the {_name(attribute)} of a function")
            if _refuses(obj, f"__{name}__", attribute, *value):
                stop(f"{name} of {_kind(obj)} is the program's own")
            return original(self, tx, obj, attribute, *value)

        return call

    return looking


def _is_new(variable: Any) -> bool:
    """Test for an object that the program makes itself."""
    from tj_torch.torch_private.dynamo import AttributeMutationNew

    return isinstance(variable.mutation_type, AttributeMutationNew)


def _refuses(variable: Any, method: str, attribute: Any, value: Any = None) -> bool:
    """Test if an object may refuse a change in a way that Dynamo does not trace.

    An exception refuses some ``args``, a tensor a ``grad`` with other metadata; a class may have
    a metaclass with a method for it, an object a ``__delattr__``.
    """
    from tj_torch.torch_private.dynamo import TensorVariable, user_defined

    if isinstance(variable, TensorVariable) and value is not None:
        return _name(attribute) == "grad" and not _is_gradient(value, variable)
    if _name(attribute) == "args":
        return issubclass(variable.python_type(), BaseException)
    if isinstance(variable, user_defined.UserDefinedClassVariable):
        if hasattr(getattr(type(variable.value), str(_name(attribute)), None), "__set__"):
            return True  # a property of the metaclass
        return getattr(type(variable.value), method) is not getattr(type, method)
    if not isinstance(variable, user_defined.UserDefinedObjectVariable):
        # The fields of a named tuple are properties without a setter.
        return issubclass(variable.python_type(), tuple)  # a named tuple
    if not _has_room(variable, _name(attribute)):  # Dynamo does not check this up to 2.11
        return True
    if method == "__delattr__":
        usual: tuple[Any, ...] = (object.__delattr__, torch.nn.Module.__delattr__)
        return type(variable.value).__delattr__ not in usual
    return False


def _is_function(variable: Any) -> bool:
    return issubclass(variable.python_type(), FunctionType)


def _fits_function(name: Any, value: Any = None) -> bool:
    """Test if a function certainly accepts ``value`` as its attribute ``name``; None deletes it.

    PyTorch 2.14 keeps all attributes of a function in its dict, of which Python checks some, and a
    call reads others.
    """
    if name not in vars(FunctionType) or name == "__module__":
        return True
    if name == "__doc__":
        return value is not None
    kinds = {"__name__": str, "__qualname__": str, "__annotations__": dict}
    kind = kinds.get(name)
    return value is not None and kind is not None and issubclass(value.python_type(), kind)


def _has_room(variable: Any, name: Any) -> bool:
    """Test if an object, of the program or an input, can have the attribute.

    The object needs a dict, or its class a data descriptor of that name, such as a slot.
    """
    kind = variable.python_type()
    if getattr(kind, "__dictoffset__", 1) != 0 or not isinstance(name, str):
        return True
    # A class with `__slots__` and no dict raises AttributeError for any other name.
    return hasattr(getattr(kind, name, None), "__set__")


def _name(attribute: Any) -> Any:
    return attribute.as_python_constant() if attribute.is_python_constant() else None


def _is_gradient(value: Any, tensor: Any) -> bool:
    """Test if a tensor accepts ``value`` as its ``grad``; as in `THPVariable_set_grad`."""
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
        return bool(called or instruction.opname == opname)

    return uses
