"""Tests of ``torch.func`` with `tj.jit` inside the transforms, or around them."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tj_suites.upstream.kinds import Mode

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["adapt", "changed", "replace"]

FROM_FUNCTION = ("grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "vmap")
"""Transforms that take a function and return one."""

AT_ONCE = ("vjp", "jvp", "linearize")
"""Transforms that take a function with its arguments, and call it."""

_transformed: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()
"""Functions that a transform returned, with what it would return without tj."""


def replace(mode: Mode) -> None:
    """Change the transforms where tests find them."""
    for module in ("functorch", "torch.func", "torch"):
        vars(importlib.import_module(module)).update(changed(mode, module))


def changed(mode: Mode, module: str = "torch.func") -> dict[str, Callable[..., Any]]:
    """The transforms of a module by name, with what they are given, or return, jitted."""
    func = vars(importlib.import_module(module))
    found = {name: _function(func[name], mode) for name in FROM_FUNCTION if name in func}
    return found | {name: _call(func[name], mode) for name in AT_ONCE if name in func}


def adapt(mode: Mode, module: ModuleType) -> None:
    """Nothing: the file has imported what was changed."""


def _jit(function: Callable[..., Any]) -> Callable[..., Any]:
    jitted: Callable[..., Any] = importlib.import_module("tj_core").jit(function)
    return jitted


def _plain(function: Any) -> Any:
    """A function as it was before it was jitted here."""
    try:
        return _transformed.get(function, function)
    except TypeError:  # it has no hash, or nothing may refer to it weakly
        return function


def _inner(function: Any, mode: Mode) -> Any:
    """The argument of a transform: the user's function jitted, once, where that is asked."""
    plain = _plain(function)
    return _jit(function) if mode is Mode.INSIDE and plain is function else plain


def _function(original: Callable[..., Any], mode: Mode) -> Callable[..., Any]:
    @functools.wraps(original)
    def transform(func: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a test's own graph, of which nothing is jitted
            return original(func, *args, **kwargs)
        plain = original(_inner(func, mode), *args, **kwargs)
        given = _jit(plain) if mode is Mode.OUTSIDE else functools.wraps(plain)(_again(plain))
        _transformed[given] = plain
        return given

    return transform


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


def _call(original: Callable[..., Any], mode: Mode) -> Callable[..., Any]:
    @functools.wraps(original)
    def transform(func: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(func, *args, **kwargs)
        function = _inner(func, mode)
        if mode is Mode.INSIDE:
            return original(function, *args, **kwargs)
        return _jit(lambda *given: original(function, *given, **kwargs))(*args)

    return transform
