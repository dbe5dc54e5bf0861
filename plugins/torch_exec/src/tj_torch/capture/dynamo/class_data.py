"""Containers that are attributes of classes: a program reads and writes those that are there.

Up to 2.11 Dynamo reads a list or a set of constants from a class as a copy without guards: what the
program appends to it is lost, and what is appended to it between calls is not seen. In all versions
that is how it reads containers from a class that the program makes by ``type(name, bases, dict)``,
and that inherits them.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import has, replace, stop

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["keep_containers", "leave_made_classes"]


def keep_containers(stack: ExitStack) -> None:
    """Read a container from a class as any other object: guarded, and written after the graph."""
    from tj_torch.torch_private.dynamo import AttrSource, VariableTracker

    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        def var_getattr(self: Any, tx: Any, name: str) -> Any:
            found = inspect.getattr_static(self.value, name, None)
            if self.source is None or not _changes(found):
                return original(self, tx, name)
            return VariableTracker.build(tx, found, AttrSource(self.source, name))

        return var_getattr

    if not has(_classes(), _SINCE_2_12):
        replace(stack, _classes(), "var_getattr", reading)


def leave_made_classes(stack: ExitStack) -> None:
    """Break the graph where a class without a name in guards has a container."""

    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        def var_getattr(self: Any, tx: Any, name: str) -> Any:
            _leave(self, name, inspect.getattr_static(self.value, name, None))
            return original(self, tx, name)

        return var_getattr

    def resolving(original: Callable[..., Any]) -> Callable[..., Any]:
        def resolve_cls_plain_attr(
            self: Any, tx: Any, name: str, found: object, *rest: Any
        ) -> Any:
            _leave(self, name, found)
            return original(self, tx, name, found, *rest)

        return resolve_cls_plain_attr

    if has(_classes(), _SINCE_2_12):
        replace(stack, _classes(), _SINCE_2_12, resolving)
    else:
        replace(stack, _classes(), "var_getattr", reading)


_SINCE_2_12 = "resolve_cls_plain_attr"
"""Method that reads data from classes."""


def _classes() -> Any:
    from tj_torch.torch_private.dynamo import user_defined

    return user_defined.UserDefinedClassVariable


def _leave(variable: Any, name: str, found: object) -> None:
    if variable.source is None and _changes(found):
        stop(f"{variable.value.__name__}.{name} of a class that the program makes")


def _changes(found: object) -> bool:
    """Test for a container that can change, or a tuple with one in it."""
    if isinstance(found, tuple):
        return any(map(_changes, found))
    return isinstance(found, list | dict | set | deque | bytearray)
