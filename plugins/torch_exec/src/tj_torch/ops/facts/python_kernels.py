"""Functions of Python that run when an operator is called."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from tj_torch.ops.fakes.places import is_users
from tj_torch.torch_private.runtime import OpOverload, custom_kernels_of, registrations_of

__all__ = ["python_kernels"]

_PYTORCHS = ("aten", "prims", "prim", "c10d", "_c10d_functional")
_DEPTH = 4
"""Depth of wrappers around a kernel."""


def python_kernels(target: Any) -> tuple[types.FunctionType, ...] | None:
    """The user's functions that a call of ``target`` in a graph runs; None if they are unknown.

    An operator whose kernels are compiled code has none.
    """
    if isinstance(target, types.FunctionType):
        return (target,) if is_users(target.__module__) else ()
    operator = getattr(target, "_opoverload", getattr(target, "default", target))
    if not isinstance(operator, OpOverload) or operator.namespace in _PYTORCHS:
        return ()
    if (kernels := custom_kernels_of(operator)) is not None:
        found = {id(f): f for kernel in kernels for f in _inside(kernel)}
        return tuple(f for f in found.values() if is_users(f.__module__))
    return None if _is_python(registrations_of(operator)) else ()


def _is_python(places: str) -> bool:
    """Test if a kernel was registered in a file of Python, by PyTorch's list of ``places``."""
    lines = (line for line in places.splitlines() if not line.startswith("debug"))
    files = (line.partition("registered at ")[2].partition(" ::")[0] for line in lines)
    return any(file.rpartition(":")[0].endswith((".py", ">")) for file in files)


def _inside(function: Any, depth: int = 0) -> Iterator[types.FunctionType]:
    """A function and the functions inside of its wrappers."""
    if not isinstance(function, types.FunctionType) or depth > _DEPTH:
        return
    yield function
    yield from _inside(getattr(function, "__wrapped__", None), depth + 1)
    for cell in function.__closure__ or ():
        if cell != types.CellType():
            yield from _inside(cell.cell_contents, depth + 1)
