"""Inductor's tests on `tj.jit`, or with nothing compiled, to see what their other checks need.

What they compile with becomes `tj.jit`; their check of a model becomes a comparison with eager.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tj_suites.upstream.agreeing import agree, agree_on_counters
from tj_suites.upstream.checking import Check, Tolerance
from tj_suites.upstream.kinds import Mode

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["adapt", "replace"]


def replace(mode: Mode) -> None:
    """Put `tj.jit`, or nothing, in the place of what compiles."""
    if mode is Mode.JIT:
        importlib.import_module("tj_suites.upstream.replacing").replace_backends()
    dynamo, jit = importlib.import_module("torch._dynamo"), _compiler(mode)
    original = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        if not isinstance(options.get("backend", ""), str):
            return original(model, **options)  # one that counts, or records
        if model is None:
            return lambda given: compile(given, **options)
        return jit(model, dynamic=options.get("dynamic"))

    vars(torch)["compile"] = compile
    for name in ("optimize", "optimize_assert"):
        vars(dynamo)[name] = _optimizing(vars(dynamo)[name], jit)
    agree_on_counters()
    _on_cpus()


def _compiler(mode: Mode) -> Callable[..., Any]:
    if mode is Mode.JIT:
        jit: Callable[..., Any] = importlib.import_module("tj_core").jit
        return jit
    return lambda function, dynamic=None: function


def _optimizing(original: Callable[..., Any], jit: Callable[..., Any]) -> Callable[..., Any]:
    """``torch._dynamo.optimize``, which takes the backend first and the function later."""

    def optimize(backend: Any = "inductor", **options: Any) -> Any:
        if not isinstance(backend, str):
            return original(backend, **options)
        return lambda function: jit(function, dynamic=options.get("dynamic"))

    return optimize


def _on_cpus() -> None:
    """Let tests that ask for a GPU and need none run where there is none.

    Those of the optimizers are written for one, and are the same programs on a CPU.
    """
    if not sys.argv[0].endswith("test_compiled_optimizers.py"):
        return
    utilities = importlib.import_module("torch.testing._internal.inductor_utils")
    vars(utilities)["GPU_TYPE"] = "cpu"
    triton = importlib.import_module("torch.testing._internal.triton_utils")
    vars(triton)["requires_gpu"] = lambda test: test
    types = importlib.import_module("torch.testing._internal.common_device_type")
    instantiate = types.instantiate_device_type_tests

    def everywhere(case: Any, scope: Any, *args: Any, except_for: Any = None, **kwargs: Any) -> Any:
        return instantiate(case, scope, *args, **kwargs)

    vars(types)["instantiate_device_type_tests"] = everywhere


def adapt(mode: Mode, module: ModuleType) -> None:
    """Replace the check of a model where a file has it, and what looks at generated code."""
    check = _checking(_compiler(mode))
    for where in (module, *(m for n, m in sys.modules.items() if n.endswith("test_torchinductor"))):
        agree(where)
        for name, value in list(vars(where).items()):
            if name == "check_model":
                setattr(where, name, check)
            elif isinstance(value, type):
                _adapt_case(value, check)


def _adapt_case(case: type, check: Callable[..., None]) -> None:
    for name, value in list(vars(case).items()):
        if getattr(value, "__name__", "") == "check_model":
            setattr(case, name, check)
    if "check_kernel_count" in vars(case):
        setattr(case, "check_kernel_count", False)  # noqa: B010


def _checking(jit: Callable[..., Any]) -> Callable[..., None]:
    config: Any = importlib.import_module("torch._dynamo.config")

    def check_model(
        self: Any,
        model: Any,
        example_inputs: Any,
        kwargs: dict[str, Any] | None = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        grad_atol: float | None = None,
        grad_rtol: float | None = None,
        exact_dtype: bool = True,
        nopython: bool = True,
        assert_equal: bool = True,
        check_gradient: bool = False,
        **others: Any,
    ) -> None:
        """Compare a model, compiled, with eager."""
        torch.compiler.reset()
        dynamic = None if config.assume_static_by_default else True
        check = Check(
            self,
            lambda function: jit(function, dynamic=dynamic),
            model,
            example_inputs,
            kwargs or {},
            Tolerance(atol, rtol, exact_dtype),
            Tolerance(grad_atol or atol, grad_rtol or rtol, exact_dtype),
            assert_equal,
        )
        check.run(gradients=check_gradient, whole=nopython)

    return check_model
