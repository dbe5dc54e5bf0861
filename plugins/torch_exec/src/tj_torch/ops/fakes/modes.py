"""Fake tensor modes whose tensors have the strides, types and devices of PyTorch's kernels.

Private names for fake tensors stand in `tj_torch.torch_private.ops`, but for the mode's class.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tj_torch.ops.fakes.arguments import settled
from tj_torch.ops.fakes.devices import on_their_devices
from tj_torch.ops.fakes.dtypes import check_one_type, in_their_types
from tj_torch.ops.fakes.kernels import CORRECTED, in_place_of_python
from tj_torch.ops.fakes.shapes import of_kernels
from tj_torch.ops.fakes.strides import corrected, may_differ
from tj_torch.torch_private import ops as private

__all__ = ["corrected_fake_kernels", "decompositions", "fake_mode", "forget_results"]


def fake_mode(*, symbolic: bool = False, shapes: Any = None) -> Any:
    """Make a mode whose tensors have metadata and no data; real tensors in its calls become fake.

    A ``symbolic`` mode allows data-dependent numbers, such as the trip count of a loop; ``shapes``
    is its shape environment, if it is not to have a new one.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from tj_torch.torch_private.shapes import FakeTensorMode

    shapes = ShapeEnv() if symbolic else shapes
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    # Not a subclass: higher-order operations register their fake kernels by the mode's class.
    mode.dispatch = functools.partial(_corrected_in, weakref.ref(mode))
    return mode


def forget_results() -> None:
    """Clear the memory that PyTorch has of calls on fake tensors, which has no bound."""
    from tj_torch.torch_private.shapes import FakeTensorMode

    FakeTensorMode.cache_clear()


@contextlib.contextmanager
def corrected_fake_kernels() -> Iterator[None]:
    """Give fake tensors of other modes, such as Dynamo's, the metadata of kernels inside."""
    from tj_torch.torch_private.shapes import FakeTensorMode

    checked = _checked(_corrected(FakeTensorMode.dispatch))
    dispatch = mock.patch.object(FakeTensorMode, "dispatch", checked)
    with dispatch, in_place_of_python({"dropout.default": None}):
        yield


@contextlib.contextmanager
def decompositions(enabled: bool) -> Iterator[None]:
    """Use PyTorch's decompositions in Python inside, if ``enabled``, but with kernels' results."""
    if not enabled:
        yield
        return
    with private.python_dispatcher(True), in_place_of_python(CORRECTED):
        yield


def _checked(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = dispatch(self, func, types, args, kwargs)
        if result is not NotImplemented:  # a subclass computes otherwise
            check_one_type(func, args)
        return result

    return run


def _corrected(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, args = args, settled(func, args)
        result = of_kernels(func, given, dispatch(self, func, types, args, kwargs or {}))
        result = in_their_types(func, args, on_their_devices(self, func, result))
        return corrected(func, args, kwargs or {}, result) if may_differ(func) else result

    return run


def _corrected_in(mode: weakref.ref[Any], *call: Any) -> Any:
    """Dispatch in ``mode``, a weak reference, as the mode must not hold itself."""
    itself: Any = mode()
    return _corrected(type(itself).dispatch)(itself, *call)
