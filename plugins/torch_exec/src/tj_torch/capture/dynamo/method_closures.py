"""Closures and defaults of methods that the program calls on objects which it has made.

Dynamo knows no expression for such a method. So it takes what the method closes over for values of
the capture, and what the method adds to a list, or sets on an object, is lost.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import is_pytorchs, stop
from tj_torch.guards import members
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import FunctionType

__all__ = ["leave_closures"]


def leave_closures(stack: ExitStack) -> None:
    """Break the graph at such a method if it holds what may change."""
    from tj_torch.torch_private.dynamo import UserFunctionVariable

    def binding(original: Callable[..., Any]) -> Callable[..., Any]:
        def bind_args(self: Any, parent: Any, *args: Any) -> Any:
            unknown = self.get_source() is None and not is_pytorchs(self.fn.__code__)
            held = _held(self.fn, parent.output.side_effects) if unknown else ()
            if any(map(_may_change, held)):
                stop(f"{self.fn.__qualname__} of a new object holds what was there before")
            return original(self, parent, *args)

        return bind_args

    replace(stack, UserFunctionVariable, "bind_args", binding)


def _held(function: FunctionType, effects: Any) -> Iterator[object]:
    """Values that a function closes over, or has as defaults, and the capture does not know."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        if cell not in effects:
            try:
                yield cell.cell_contents
            except ValueError:  # it has no value yet
                continue


def _may_change(value: object) -> bool:
    """Test for a container, or an object of a class of the program's."""
    kind = type(value)
    if kind in (list, dict, set, bytearray, deque):
        return True
    known = members.is_pythons(kind) or members.is_pytorchs(kind)
    return not known and not issubclass(kind, enum.Enum | type)
