"""Calls that are also run on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import pytest
import torch
from tj_torch.ops.fakes.modes import fake_mode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Comparing(TorchDispatchMode):
    """Mode that also runs each operator on fake tensors, and records where a ``fact`` differs.

    ``unread`` are results that are not compared: operators by name, with the places of results.
    """

    def __init__(self, fact: Callable[[Any], Any], unread: Container[tuple[str, int]] = ()) -> None:
        super().__init__()
        self.fact, self.unread = fact, unread
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        said = result_on_fakes(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        results = zip(*map(pytree.tree_leaves, (said, result)), strict=False)
        for i, (fake, real) in enumerate(results):
            compared = isinstance(fake, torch.Tensor) and (str(func), i) not in self.unread
            if compared and self.fact(fake) != self.fact(real):
                given = [*map(described, pytree.tree_leaves(args))]
                self.found.add(f"{func}: {self.fact(fake)}, not {self.fact(real)}, of {given}")
        return result


def result_on_fakes(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a call on fake tensors; None if it has none."""
    mode = fake_mode()
    try:
        given = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
        with mode:
            return func(*given[0], **given[1])
    except Exception:  # sizes that depend on data, quantized tensors
        return None


def described(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    strides = x.stride() if x.layout is torch.strided else None
    return x.dtype, tuple(x.shape), strides


@pytest.fixture(scope="session")
def comparing() -> type[Comparing]:
    return Comparing


@pytest.fixture(scope="session")
def faked() -> Callable[[Any, Any, Any], Any]:
    return result_on_fakes
