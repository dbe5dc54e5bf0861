"""Fake tensor modes whose tensors have the strides of PyTorch's kernels.

Private names for fake tensors stand in `tj_torch.torch_private.ops`, but for the mode's class.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from tj_torch.ops.strides import corrected, may_differ

__all__ = ["corrected_fake_kernels", "fake_mode"]


def fake_mode(*, symbolic: bool = False, shapes: Any = None) -> Any:
    """A mode whose tensors have metadata and no data. Real tensors that meet it become fake.

    In a ``symbolic`` one there may be numbers that nobody knows, such as how often a loop runs;
    ``shapes`` is where symbols come from, if not from a place of its own.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from tj_torch.torch_private.shapes import FakeTensorMode

    shapes = ShapeEnv() if symbolic else shapes
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    # No subclass: higher-order operations know modes by their class.
    mode.dispatch = functools.partial(_corrected_in, weakref.ref(mode))  # type: ignore[method-assign]
    return mode


@contextlib.contextmanager
def corrected_fake_kernels() -> Iterator[None]:
    """While it is entered, fake tensors that others make have the strides of `fake_mode`'s."""
    from tj_torch.torch_private.shapes import FakeTensorMode

    dispatch = mock.patch.object(FakeTensorMode, "dispatch", _corrected(FakeTensorMode.dispatch))
    with dispatch, _kernels_decide_dropout():
        yield


@contextlib.contextmanager
def _kernels_decide_dropout() -> Iterator[None]:
    """PyTorch's decomposition of a dropout that drops nothing copies what the kernel returns."""
    from tj_torch.torch_private.shapes import DispatchKey

    operator = torch.ops.aten.dropout.default
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    kept = {k: operator.py_kernels.pop(k) for k in keys if k in operator.py_kernels}
    operator._dispatch_cache.clear()
    try:
        yield
    finally:
        operator.py_kernels.update(kept)
        operator._dispatch_cache.clear()


def _corrected(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = dispatch(self, func, types, args, kwargs or {})
        return corrected(func, args, kwargs or {}, result) if may_differ(func) else result

    return run


def _corrected_in(mode: weakref.ref[Any], *call: Any) -> Any:
    """A dispatch in ``mode``, which must not hold itself."""
    itself: Any = mode()
    return _corrected(type(itself).dispatch)(itself, *call)
