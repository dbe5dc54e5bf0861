"""Lists and sets that were there before: the program reads and writes these, not copies of them.

Dynamo takes a list or a set of constants for a constant. So it reads one that is in a tuple of a
module, and up to 2.11 one that is an attribute of a class: without guards, and what the program
adds is lost. Up to 2.14 so is what it adds to a set of other objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import forget_handlers, stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["keep_lists_and_sets", "leave_made_classes"]


def keep_lists_and_sets(stack: ExitStack) -> None:
    """Guard lists and sets, and write to those that were there before."""
    from tj_torch.torch_private.dynamo import ConstantVariable, SideEffects, VariableBuilder

    is_constant = ConstantVariable.is_literal

    def refusing(original: Callable[..., bool]) -> Any:
        def is_literal(found: object, *seen: Any) -> bool:
            return not _changes(found) and original(found, *seen)

        return staticmethod(is_literal)

    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def _wrap(self: Any, value: Any) -> Any:
            # Guarded as one constant, but written: in any order, and in a package.
            if type(value) is set and is_constant(value):
                return self.wrap_literal(value)
            return original(self, value)

        return _wrap

    def tracking(original: Callable[..., Any]) -> Callable[..., Any]:
        def track_object_existing(
            self: Any, item: Any, variable: Any, *kind: Any, **named: Any
        ) -> Any:
            if type(item) is set:
                return self.track_mutable(item, variable)
            return original(self, item, variable, *kind, **named)  # ``kind`` from 2.15 on

        return track_object_existing

    replace(stack, ConstantVariable, "is_literal", refusing)
    replace(stack, VariableBuilder, "_wrap", wrapping)
    replace(stack, SideEffects, "track_object_existing", tracking)


def leave_made_classes(stack: ExitStack) -> None:
    """Break the graph where the program makes a class by ``type(...)`` or ``namedtuple(...)``.

    Dynamo makes one while it captures, with ``__init_subclass__`` called, for all calls.
    """
    from tj_torch.torch_private.dynamo import BuiltinVariable, functions

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_type(self: Any, tx: Any, found: Any, *bases: Any, **keywords: Any) -> Any:
            if bases or keywords:
                stop("a class that the program makes")
            return original(self, tx, found)

        return call_type

    def folding(original: Callable[..., bool]) -> Callable[..., bool]:
        def can_constant_fold_through(self: Any) -> bool:
            return self.fn is not type and original(self)

        return can_constant_fold_through

    def naming(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(*args: Any, **kwargs: Any) -> Any:
            stop("a class that the program makes")

        return call_function

    forget_handlers(stack, type)
    replace(stack, functions.CollectionsNamedTupleFunction, "call_function", naming)
    replace(stack, BuiltinVariable, "call_type", making)
    replace(stack, BuiltinVariable, "can_constant_fold_through", folding)


def _changes(found: object) -> bool:
    """Test for a list or a set, or a tuple with one in it."""
    if isinstance(found, tuple):
        return any(map(_changes, found))
    return isinstance(found, list | set)
