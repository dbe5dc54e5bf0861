"""Puts tj where a test file compiles.

Every private name of PyTorch that this needs is looked up here. A process that runs without tj does
not import it either: tj is imported where it is put to use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from tj_suites.upstream.kinds import Kind, Mode

if TYPE_CHECKING:
    import unittest
    from types import ModuleType

__all__ = ["adapt", "hide", "replace", "replace_backends"]

STRINGS = ("eager", "eager_noexcept", "aot_eager", "aot_eager_decomp_partition", "inductor")
"""Names of backends that are replaced; ``torch.compile`` takes the last one where none is named."""


def replace(kind: Kind, mode: Mode) -> None:
    """Change PyTorch so that a file of ``kind``, loaded from now on, runs in ``mode``."""
    if kind is Kind.WRAPPED:
        _wrap_tests(mode)
    elif kind is Kind.AOT:
        _replace_aot_function()
    elif kind in _LATER:
        importlib.import_module(_LATER[kind]).replace(mode)
    else:
        replace_backends()
        if mode is Mode.JIT:
            _replace_compile()


_LATER = {
    Kind.COMPILED: "tj_suites.upstream.inductor_tests",
    Kind.TRANSFORMS: "tj_suites.upstream.transforms",
}
"""Kinds with a module of their own, which a process of another kind does not import."""


def adapt(kind: Kind, mode: Mode, module: ModuleType) -> None:
    """Change what a file has defined when it was loaded."""
    if mode is not Mode.PLAIN and kind in _LATER:
        importlib.import_module(_LATER[kind]).adapt(mode, module)


def hide(result: unittest.TestResult) -> None:
    """Dynamo wraps the whole test, and would look into these methods as well."""
    for name in dir(type(result)):
        if name.startswith(("add", "start", "stop")):
            setattr(result, name, torch.compiler.disable(getattr(result, name)))


def _wrap_tests(mode: Mode) -> None:
    from torch.testing._internal.common_utils import TestCase

    compiler, case = _compilers()[mode], cast("Any", TestCase)
    case.compile_fn = lambda self, fn, backend, nopython: compiler()(fn)


def _compilers() -> dict[Mode, Callable[[], Callable[[Any], Any]]]:
    return {
        Mode.TJ: lambda: torch._dynamo.optimize("tj"),
        Mode.EAGER: lambda: torch._dynamo.optimize("eager_noexcept"),
        Mode.JIT: lambda: importlib.import_module("tj_core").jit,
    }


def replace_backends() -> None:
    """Have the backends that Dynamo's tests name, and those that count, compile with tj."""
    from tj_torch.backend import tj

    eval_frame: Any = importlib.import_module("torch._dynamo.eval_frame")
    inductor, wrapper = (getattr(torch, f"_TorchCompile{name}Wrapper") for name in ("Inductor", ""))
    testing: Any = importlib.import_module("torch._dynamo.testing")
    # Not in the registry: PyTorch itself looks its backend "eager" up there.
    eval_frame.lookup_backend = _choosing(eval_frame.lookup_backend, 0)
    wrapper.__init__ = _choosing(wrapper.__init__, 1)
    inductor.__call__ = lambda self, graph, examples: tj(graph, examples)
    testing.CompileCounterWithBackend.__init__ = _choosing(
        testing.CompileCounterWithBackend.__init__, 1
    )
    for counter in (testing.CompileCounter, testing.EagerAndRecordGraphs):
        counter.__call__ = _and_compile(counter.__call__)
        counter.compiler_fn = staticmethod(tj)  # by which tj knows that the graph is for it


def _choosing(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """``function``, which is given tj where the argument at ``position`` names a backend."""
    from tj_torch.backend import tj

    def call(*args: Any) -> Any:
        chosen = tj if isinstance(args[position], str) and args[position] in STRINGS else None
        return function(*args[:position], chosen or args[position], *args[position + 1 :])

    return call


def _and_compile(count: Callable[..., Any]) -> Callable[..., Any]:
    """A backend's ``__call__`` that counts or records as before, and compiles with tj."""
    from tj_torch.backend import tj

    def call(self: Any, graph: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        count(self, graph, examples)
        return tj(graph, examples)

    return call


def _replace_compile() -> None:
    """`tj.jit` in place of ``torch.compile``, where no graph break is refused or counted."""
    import tj_core as tj

    original = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        if options.get("backend") not in STRINGS or options.get("fullgraph"):
            return original(model, **options)
        return tj.jit(model, dynamic=options.get("dynamic"))

    module: Any = torch
    module.compile = compile


def _replace_aot_function() -> None:
    import tj_core as tj

    def aot_function(fn: Any, *args: Any, dynamic: bool = False, **kwargs: Any) -> Any:
        return tj.jit(fn, dynamic=dynamic)

    def aot_module(module: Any, *args: Any, **kwargs: Any) -> Any:
        return tj.jit(module)

    names = {"aot_function": aot_function, "aot_module": aot_module}
    for module in ("torch._functorch.aot_autograd", "functorch.compile"):
        vars(importlib.import_module(module)).update(names)
    vars(importlib.import_module("functorch.compile"))["compiled_function"] = aot_function
