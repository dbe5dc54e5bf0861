"""The two configurations that programs of tensor subclasses are compared with eager in; plugins."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import tj_core as tj
import torch
from tj_core.extend import RuleTable, hookimpl
from tj_subclass.kind import rules
from torch.utils import _pytree as pytree


def _exact(program: Any, **options: Any) -> Any:
    plugins = ["torch", "autograd", "subclass"]
    return tj.jit(program, plugins=plugins, check=2, strict=False, **options)


def _installed(program: Any, **options: Any) -> Any:
    left = {name: value for name, value in os.environ.items() if not name.startswith("TJ_")}
    with mock.patch.dict(os.environ, {**left, "TJ_CACHE_DIR": "none"}, clear=True):
        session = tj.Session()
    return tj.jit(program, session=session, **options)


@pytest.fixture(params=[_exact, _installed], ids=["exact", "installed"])
def jit(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`tj_core.jit` on PyTorch's kernels with all checks, and with what users have installed."""
    found: Callable[..., Any] = request.param
    return found


class Whole:
    """Handles calls on tensor subclasses, and leaves them whole: the kind without the lowering."""

    tj_name = "whole"

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        return (rules(),)


@pytest.fixture
def whole() -> Whole:
    """A plugin under which calls on tensor subclasses stay whole."""
    return Whole()


@pytest.fixture
def alike() -> Callable[[Any, Any], None]:
    """Sees that two trees of facts are equal, and tensors in them within tolerance."""

    def check(mine: Any, eagers: Any) -> None:
        (a, spec), (b, other) = map(pytree.tree_flatten, (mine, eagers))
        assert spec == other, (mine, eagers)
        for x, y in zip(a, b, strict=True):
            if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
                torch.testing.assert_close(x, y)
            else:
                assert x == y, (mine, eagers)

    return check
