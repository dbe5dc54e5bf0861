"""Keys of dicts and items of sets whose class says which of them are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.own_methods import is_known
from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["leave_equal_keys"]


def leave_equal_keys(stack: ExitStack) -> None:
    """Break the graph where an ``__eq__`` of the program's decides: Dynamo compares identity.

    That is where the hashes of two objects are equal.
    """
    from tj_torch.torch_private.dynamo import HashableTracker

    def comparing(original: Callable[..., Any]) -> Callable[..., Any]:
        def __eq__(self: Any, other: Any) -> Any:
            found = original(self, other)
            if not found and isinstance(other, HashableTracker):
                for variable in (self.vt, other.vt):
                    if _compares(variable):
                        stop(
                            f"{variable.python_type().__qualname__}.__eq__ says which keys are one"
                        )
            return found

        return __eq__

    replace(stack, HashableTracker, "__eq__", comparing)


def _compares(variable: Any) -> bool:
    """Test for an object whose class has an ``__eq__``, of which Dynamo knows nothing."""
    from tj_torch.torch_private.dynamo import UserDefinedObjectVariable, user_defined

    frozen = getattr(user_defined, "FrozenDataClassVariable", ())
    if not isinstance(variable, UserDefinedObjectVariable) or isinstance(variable, frozen):
        return False
    cls = variable.python_type()
    inherited: Any = object.__eq__
    return cls.__eq__ is not inherited and not is_known(cls.__module__)
