"""Captures leave the thread's state as they found it, even if they fail."""

from __future__ import annotations

import random
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tj_core as tj
import torch
from tj_torch.runtime import thread_state
from tj_torch.torch_private.runtime import entered_dual_level
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.usefixtures("lenient")

X = torch.rand(3, 2)


def hessian(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(torch.func.hessian(lambda y: (y**3).sum()))(x)


@pytest.mark.slow
@pytest.mark.leaves_changed("dispatch keys")
@pytest.mark.parametrize("frontend", ["dynamo", "dynamo_hook"])
def test_a_failed_capture_leaves_eager_as_it_was(frontend: str) -> None:
    """PyTorch itself raises in this capture, below several of its layers."""
    before = thread_state.snapshot()
    expected = hessian(X)
    jitted = tj.jit(hessian, frontend=frontend)
    with pytest.warns(tj.TjWarning, match="not captured"):
        got = jitted(X)
    assert torch.equal(got, expected)
    assert torch.equal(hessian(X), expected)
    assert thread_state.changes(before) == ()


class Functions(TorchFunctionMode):
    pass


class Operators(TorchDispatchMode):
    pass


def _filter() -> None:
    warnings.filters.insert(0, ("ignore", None, Warning, None, 7))  # type: ignore[attr-defined]


def _replace_module() -> None:
    sys.modules["json"] = types.ModuleType("json")


CHANGES: dict[str, Callable[[], Any]] = {
    "levels of torch.func": lambda: torch._C._functorch._grad_increment_nesting(),
    "level of forward-mode AD": torch.autograd.forward_ad.enter_dual_level,
    "dispatch modes": lambda: Operators().__enter__(),
    "function modes": lambda: Functions().__enter__(),
    "grad mode": lambda: torch._C._set_grad_enabled(False),
    "forward gradients": lambda: torch._C._set_fwd_grad_enabled(False),
    "hooks on saved tensors": lambda: torch._C._autograd._saved_tensors_hooks_disable("no"),
    "writes that change requires_grad": lambda: (
        torch._C._functorch.set_inplace_requires_grad_allowed(True)
    ),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "default data type": lambda: torch.set_default_dtype(torch.float64),
    "random numbers of PyTorch": lambda: torch.rand(1),
    "random numbers of Python": random.random,
    "random numbers of NumPy": np.random.rand,
    "filters of warnings": _filter,
    "modules": _replace_module,
    "dispatch keys": lambda: torch._C._dispatch_tls_set_dispatch_key_excluded(
        torch._C.DispatchKey.Functionalize, True
    ),
}
"""Function per part of the state that changes it, and does not restore it."""


@pytest.mark.sampled(12)
@pytest.mark.leaves_changed(*CHANGES)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("raises", [False, True])
def test_each_part_is_set_back(name: str, raises: bool) -> None:
    before = thread_state.snapshot()
    seen: list[tuple[str, ...]] = []
    with thread_state.observe(seen.append):
        try:
            with thread_state.kept():
                CHANGES[name]()
                assert name in thread_state.changes(before)
                if raises:
                    raise ValueError
        except ValueError:
            assert raises
    assert thread_state.changes(before) == ()
    assert len(seen) == 1
    assert name in seen[0]


@pytest.mark.leaves_changed("level of forward-mode AD")
def test_a_level_that_only_operators_see_is_left() -> None:
    """Captured programs enter levels of forward-mode AD below its Python module."""
    before = thread_state.snapshot()
    with thread_state.kept():
        torch._C._enter_dual_level()
        assert thread_state.changes(before) == ("level of forward-mode AD",)
    with torch.autograd.forward_ad.dual_level():
        pass
    assert thread_state.changes(before) == ()


def test_reading_the_level_disturbs_no_other_thread(switching: None) -> None:
    """PyTorch has one level for all threads, and eager refuses to enter it twice."""
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            entered_dual_level()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            torch.func.jvp(torch.sin, (X,), (X,))
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_every_part_is_changed_by_a_test() -> None:
    unset = {"inference mode"}  # which only a context manager sets, and it sets it back
    names = {fact.name for fact in thread_state.FACTS} | {thread_state.KEYS}
    assert names - unset == CHANGES.keys()


def test_a_compile_in_the_backward_leaves_the_state() -> None:
    x = X.clone().requires_grad_()
    y = tj.jit(lambda x: torch.nn.functional.dropout(x.sin()) * 2)(x)
    with torch.no_grad():
        before = thread_state.snapshot()
        y.backward(torch.ones(2).expand(3, 2))
        assert thread_state.changes(before) == ()
