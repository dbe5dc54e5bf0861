"""Members of enums, whose attributes are read in each call.

Up to 2.11 Dynamo takes a member of an enum for a constant, and so all that it reads from it: a list
that is its value, an attribute that the program sets, what a property returns. Later it does so of
a member without an expression to read it from, as ``E["A"]`` of a class.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.lookup import MissingNameError

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["leave_members", "members_of_old"]


def leave_members(stack: ExitStack) -> None:
    """Break the graph at attributes of a member that may be others in the next call."""
    from tj_torch.torch_private.dynamo import UserDefinedObjectVariable

    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        def var_getattr(self: Any, tx: Any, name: str) -> Any:
            value = self.value
            read = old is not None or self.source is None  # else with guards
            if read and isinstance(value, enum.Enum) and not _is_settled(value, name):
                stop(f"{type(value).__qualname__}.{value.name}.{name} may change")
            return original(self, tx, name)

        return var_getattr

    old = members_of_old()
    releases.attributes(stack, old or UserDefinedObjectVariable, reading)


def members_of_old() -> Any | None:
    """Dynamo's class for members of enums up to 2.11; later they are objects of the program."""
    try:
        from tj_torch.torch_private.dynamo import EnumVariable
    except MissingNameError:
        return None
    return EnumVariable


def _is_settled(member: enum.Enum, name: str) -> bool:
    """Test if an attribute of a member is the same in each call."""
    if name in ("name", "_name_", "value", "_value_", "__class__", "__objclass__"):
        own = inspect.getattr_static(type(member), name, None)
        known = getattr(getattr(own, "fget", None), "__module__", "enum") == "enum"
        return known and (name.strip("_") != "value" or _is_value(member.value))
    found = inspect.getattr_static(member, name, None)
    if isinstance(found, FunctionType | classmethod | staticmethod):
        return True  # traced
    # What no class has may come, or come from a `__getattr__`.
    of_python = type(found).__module__ == "builtins" and not isinstance(found, property)
    return found is not None and of_python and name not in vars(member)


_VALUES = (int, float, complex, str, bytes, bool, type(None))


def _is_value(found: object) -> bool:
    if isinstance(found, tuple):
        return all(map(_is_value, found))
    return type(found) in _VALUES or isinstance(found, enum.Enum | type)
