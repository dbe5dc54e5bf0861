"""Functions left to Python because they see the end of objects that they make.

A captured program makes such an object after its graph, or never, and frees it at another time: it
would run ``__del__`` then, and a weak reference would find an object that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import ref

from tj_torch.capture.dynamo.patches import is_pytorchs, leave_program, with_subclasses
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["leave_lifetimes"]


def leave_lifetimes(stack: ExitStack) -> None:
    """Leave functions that make an object with ``__del__``, or a weak reference to a new object.

    Their callers, too: a frame that PyTorch compiles keeps its locals while the rest of it runs.
    """
    from tj_torch.torch_private.dynamo import SideEffects, user_defined

    def tracking(original: Callable[..., Any]) -> Callable[..., Any]:
        def track_new_user_defined_object(
            self: Any, base: Any, cls: Any, *rest: Any, **more: Any
        ) -> Any:
            _leave_end(cls.value)
            return original(self, base, cls, *rest, **more)

        return track_new_user_defined_object

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            _leave_end(self.value)  # Dynamo makes objects of its own to try
            if self.value is ref and args and args[0].realize().source is None:
                leave_program("a weak reference to an object that the program makes")
            return original(self, tx, args, kwargs)

        return call_function

    replace(stack, SideEffects, "track_new_user_defined_object", tracking)
    for owner in with_subclasses(user_defined.UserDefinedClassVariable):
        if "call_function" in vars(owner):
            replace(stack, owner, "call_function", making)


def _leave_end(cls: type) -> None:
    """Leave the program if ``cls`` has a ``__del__`` of the program's."""
    found = getattr(cls, "__del__", None)
    if isinstance(found, FunctionType) and not is_pytorchs(found.__code__):
        leave_program(f"{cls.__qualname__}.__del__ runs when an object is freed")
