"""Types of NumPy's arrays and scalars that a program is given.

Dynamo takes a scalar, such as a ``numpy.float64``, for an array, and says of both that they have
the attributes of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["NAMES", "correct"]

NAMES = frozenset({"isinstance", "type", "hasattr", "__class__"})
"""Names in functions that ask for a type."""

_TYPE = "type_of_scalar"
"""Key in the notes of a graph's input that is a scalar."""


def correct(stack: ExitStack) -> None:
    """Answer for the types that the values have, which are guarded, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import (
        ConstantVariable,
        NumpyNdarrayVariable,
        VariableBuilder,
    )

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_obj_hasattr(self: Any, tx: Any, name: str) -> Any:
            # Neither arrays nor scalars have attributes beside those of their class.
            found = any(name in vars(cls) for cls in self.python_type().__mro__)
            return ConstantVariable.create(found)

        return call_obj_hasattr

    replace(stack, VariableBuilder, "_wrap", _wrapping)
    replace(stack, VariableBuilder, "wrap_numpy_ndarray", _guarding)
    replace(stack, NumpyNdarrayVariable, "python_type", _typing)
    replace(stack, NumpyNdarrayVariable, "call_obj_hasattr", asking, inherited=True)


def _wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import NumpyNdarrayVariable

    def _wrap(self: Any, value: Any) -> Any:
        made = original(self, value)
        # Not by `isinstance`, which a lazy variable would be read for.
        if type(value).__module__ == "numpy" and type(made) is NumpyNdarrayVariable:
            made.as_proxy().node.meta[_TYPE] = type(value)
        return made

    return _wrap


def _guarding(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import GuardBuilder

    def wrap_numpy_ndarray(self: Any, value: Any) -> Any:
        self.install_guards(GuardBuilder.TYPE_MATCH)
        return original(self, value)

    return wrap_numpy_ndarray


def _typing(original: Callable[..., Any]) -> Callable[..., Any]:
    def python_type(self: Any) -> Any:
        return self.as_proxy().node.meta.get(_TYPE) or original(self)

    return python_type
