"""Outputs of the layers of a program, for `tj_core.compare`.

Layers are observed by hooks of modules. In a jitted program hooks are a part of it: it is jitted
once more with them, so that each layer is computed as that program computes it. The root is no
layer: what it returns is the result, and its hooks run around a program.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tj_core import jit
from tj_core.extend import Jitted, RuleTable
from tj_core.internal import LAYERS, Observed

from tj_torch.capture.dynamo.fragments import original_of
from tj_torch.dispatch.behind import states_behind

__all__ = ["observe", "rules"]


def rules() -> RuleTable[object]:
    """Make the rule table with the observer of layers."""
    table: RuleTable[object] = RuleTable(LAYERS, rule_type=object)
    table.set("observe", observe)
    return table


def observe(fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> Observed:
    """Call ``fn``, and return its result and the tensors that its layers returned.

    A layer is called ``blocks.0`` by its path, ``blocks.0 (2)`` at its second call, and
    ``blocks.0[1]`` for a part of what it returns. ``fn`` is jitted again if it is jitted.
    """
    run, original = _apart(fn)
    order: list[str] = []
    outputs: dict[str, list[Any]] = {}
    with contextlib.ExitStack() as stack:
        for name, module in _layers(original, (*args, *keywords.values())):
            outputs[name] = []
            handle = module.register_forward_hook(_noting(name, outputs[name], order))
            stack.callback(handle.remove)
        result = run(*args, **keywords)
    found: dict[str, Any] = {}
    calls = dict.fromkeys(outputs, 0)
    for name in order:
        value = outputs[name][calls[name]]
        calls[name] += 1
        called = name if calls[name] == 1 else f"{name} ({calls[name]})"
        found |= {f"{called}{place}": tensor for place, tensor in _tensors(value)}
    return Observed(result, found)


def _noting(name: str, outputs: list[Any], order: list[str]) -> Callable[..., None]:
    """A hook that copies what a module returns: the program may write to it later."""

    def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
        order.append(name)
        outputs.append(_copied(output))

    return hook


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return [_copied(part) for part in value]
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return None


def _tensors(value: Any, place: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a copy of what a layer returned, with their places in it."""
    if isinstance(value, torch.Tensor):
        yield place, value
        return
    parts = value if isinstance(value, dict) else dict(enumerate(value or ()))
    for key, part in parts.items():
        yield from _tensors(part, f"{place}[{key!r}]")


def _apart(fn: Any) -> tuple[Callable[..., Any], Any]:
    """A callable for one call of ``fn``, and the callable that was jitted, or ``fn`` itself.

    A jitted program is compiled anew, within the call: the entries of ``fn`` stay as they are, and
    its program is never answered by eager's kernels.
    """
    state = getattr(fn, "__tj__", None)
    original = state.fn if isinstance(state, Jitted) else original_of(fn)
    if not isinstance(state, Jitted):
        state = next(iter(states_behind(fn) or ()), None) if original is not None else None
    if state is None:
        return fn, fn
    same = ("executors", "transforms", "autocast", "dynamic", "fullgraph", "frontend")
    kept = {key: state.arguments[key] for key in same}
    again = jit(original, session=state.session, on_miss="compile", compile="call", **kept)
    return again, original


def _layers(fn: Any, given: Sequence[Any]) -> list[tuple[str, torch.nn.Module]]:
    """The layers of ``fn``, with their paths: submodules, and modules that a function calls.

    Where a function finds several modules, or one without submodules, these are layers, too, and
    paths begin with their names.
    """
    if isinstance(fn, torch.nn.Module):
        return [(path, module) for path, module in fn.named_modules() if path]
    named = {**dict(_found_by(fn, set())), **{f"argument {i}": x for i, x in enumerate(given)}}
    roots: dict[torch.nn.Module, str] = {}
    for name, value in named.items():
        if isinstance(value, torch.nn.Module):
            roots.setdefault(value, name)
    if len(roots) == 1 and any(True for root in roots for _ in root.children()):
        return _layers(next(iter(roots)), ())
    found: dict[torch.nn.Module, str] = {}
    for root, name in roots.items():
        for path, module in root.named_modules():
            found.setdefault(module, f"{name}.{path}" if path else name)
    return [(path, module) for module, path in found.items()]


def _found_by(fn: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Values that ``fn`` finds by name, and those that functions of its file find."""
    if id(fn) in seen:
        return
    seen.add(id(fn))
    if isinstance(fn, functools.partial):
        yield from ((str(place), value) for place, value in enumerate(fn.args))
        yield from fn.keywords.items()
        yield from _found_by(fn.func, seen)
    elif isinstance(fn, types.MethodType):
        yield "self", fn.__self__
        if not isinstance(fn.__self__, torch.nn.Module):
            yield from _found_by(fn.__self__, seen)
        yield from _found_by(fn.__func__, seen)
    elif isinstance(fn, types.FunctionType):
        for name, value in _variables(fn):
            yield name, value
            is_module = isinstance(value, torch.nn.Module)
            if getattr(value, "__module__", None) == fn.__module__ and not is_module:
                yield from _found_by(getattr(getattr(value, "__tj__", None), "fn", value), seen)
    elif not isinstance(fn, type):
        yield from getattr(fn, "__dict__", {}).items()
        yield from _found_by(inspect.getattr_static(type(fn), "__call__", None), seen)


def _variables(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Variables from around ``fn`` that its code names, functions inside of it included."""
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is empty yet
            yield name, cell.cell_contents
    codes = [fn.__code__]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        yield from ((n, fn.__globals__[n]) for n in code.co_names if n in fn.__globals__)
