"""Break the graph where a metaclass of the user's makes an object or answers ``isinstance``.

Dynamo makes a new object where a metaclass may find one, and looks at types where it may look at
values (``isinstance(x, Float[Tensor, "b c"])`` of jaxtyping), or asks once for all calls.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from types import UnionType
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.own_methods import is_own
from tj_torch.capture.dynamo.patches import forget_handlers, stop, with_subclasses
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["kinds_in", "leave_metaclass_calls", "leave_metaclass_checks"]


def leave_metaclass_calls(stack: ExitStack) -> None:
    """Break the graph at calls of classes that a metaclass of the user's runs."""
    from tj_torch.torch_private.dynamo import user_defined

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if is_own(type(self.value), "__call__"):
                stop(f"a call of {self.value.__qualname__}, which its metaclass runs")
            return original(self, tx, args, kwargs)

        return call_function

    for owner in with_subclasses(user_defined.UserDefinedClassVariable):
        if "call_function" in vars(owner):
            replace(stack, owner, "call_function", refusing)


def leave_metaclass_checks(stack: ExitStack) -> None:
    """Break the graph where a metaclass of the user's answers ``isinstance`` or ``issubclass``."""
    from tj_torch.torch_private.dynamo import BuiltinVariable

    forget_handlers(stack, isinstance, issubclass)
    replace(stack, BuiltinVariable, "call_isinstance", _asking("__instancecheck__"))
    replace(stack, BuiltinVariable, "call_issubclass", _asking("__subclasscheck__"))


def _asking(method: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, tx: Any, one: Any, kinds: Any) -> Any:
            for kind in kinds_in(kinds.as_python_constant() if _is_known(kinds) else ()):
                if is_own(type(kind), method):
                    stop(f"{kind.__qualname__}, whose metaclass says what is one")
            return original(self, tx, one, kinds)

        return call

    return asking


def _is_known(variable: Any) -> bool:
    known: bool = variable.is_python_constant()
    return known


def kinds_in(kinds: Any) -> Iterator[type]:
    """Yield the classes in the second argument of ``isinstance``, in the order in which it asks."""
    if isinstance(kinds, tuple):
        for kind in kinds:
            yield from kinds_in(kind)
    elif isinstance(kinds, UnionType) or typing.get_origin(kinds) is typing.Union:
        yield from kinds_in(typing.get_args(kinds))
    elif isinstance(kinds, type):
        yield kinds
    elif isinstance(kind := getattr(kinds, "__origin__", None), type):
        yield kind  # of `typing.Sequence`
