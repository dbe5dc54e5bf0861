"""Names of modules in the parts of a program with graph breaks, as in a program without any.

Dynamo names a module by the frame that it compiles. Below its hook that is often the ``forward`` of
a submodule, or the rest of one: ``L['self'].up`` is ``layers.0.up`` of the whole model.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.imports import global_of

if TYPE_CHECKING:
    from tj_torch.capture.dynamo.fragments import Frame

__all__ = ["name_modules"]

_PROGRAM = "L['fn']"
"""The program's name in the frame that is captured whole."""


def name_modules(graph: torch.fx.GraphModule, program: Any, frame: Frame | None) -> None:
    """Give modules in ``graph``, the part of ``program`` in ``frame``, the names they have in it.

    A call outside of all modules that the graph shows ran in the one whose ``forward`` the frame
    is. Modules that are only arguments of a function keep Dynamo's names.
    """
    known: dict[int, str] = {}
    for prefix, module in _roots(program):
        for name, part in module.named_modules():
            known.setdefault(id(part), f"{prefix}.{name}" if name else prefix)
    if not known:
        return
    around = _around(frame, known)
    for part in graph.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            named = _named(node.meta.get("nn_module_stack") or {}, known)
            if stack := {**around, **named}:
                node.meta["nn_module_stack"] = stack


def _roots(program: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules that the program is, or holds, each with Dynamo's expression for it."""
    if isinstance(program, torch.nn.Module):
        yield _PROGRAM, program
        return
    for name, value in _held(program):
        if isinstance(value, torch.nn.Module):
            yield name, value


def _held(program: Any) -> Iterator[tuple[str, Any]]:
    owner = getattr(program, "__self__", None)
    if owner is not None:
        yield f"{_PROGRAM}.__self__", owner
        for name, value in getattr(owner, "__dict__", {}).items():
            yield f"{_PROGRAM}.__self__.{name}", value
    function = getattr(program, "__func__", program)
    if not isinstance(function, types.FunctionType):
        return
    for i, cell in enumerate(function.__closure__ or ()):
        try:
            yield f"{_PROGRAM}.__closure__[{i}].cell_contents", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    scope = function.__globals__
    module = scope.get("__name__", "")
    if module in sys.modules and vars(sys.modules[module]) is scope:
        alias = f"G['{global_of(module)}']"
        for name in function.__code__.co_names:
            yield f"{alias}.{name}", scope.get(name)


def _around(frame: Frame | None, known: Mapping[int, str]) -> dict[str, tuple[str, type]]:
    """The module whose ``forward`` the frame is, as in a stack of modules; empty if it is none."""
    if frame is None:
        return {}
    for name, value in frame.values.items():
        if isinstance(value, torch.nn.Module) and id(value) in known:
            forward: Callable[..., Any] = type(value).forward
            code = getattr(forward, "__code__", None)
            if code is not None and code.co_varnames[:1] == (name,) and frame.is_of(code):
                return {str(id(value)): (known[id(value)], type(value))}
    return {}


def _named(stack: Mapping[str, Any], known: Mapping[int, str]) -> dict[str, Any]:
    # A key is the module's id, with the number of the call if it is called again.
    ids = {key: key.partition("@")[0] for key in stack}
    return {
        key: (known.get(int(ids[key]), name) if ids[key].isdigit() else name, kind)
        for key, (name, kind) in stack.items()
    }
