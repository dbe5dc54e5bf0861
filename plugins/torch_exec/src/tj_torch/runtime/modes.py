"""The user's active modes, with ``__torch_dispatch__`` or ``__torch_function__``.

They must see the program's operations and none of tj's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tj_torch.torch_private.runtime import (
    DeviceContext,
    dispatch_modes,
    function_mode_stack,
    function_modes,
    set_function_mode_stack,
    without_dispatch_modes,
)

if TYPE_CHECKING:
    import torch

__all__ = ["device_modes", "function_mode_is_on", "without_function_modes", "without_modes"]


def function_mode_is_on() -> bool:
    """Test for an active ``__torch_function__`` mode other than a default device."""
    return function_modes() > 0 and device_modes() is None


def device_modes() -> list[torch.device] | None:
    """Default devices that are set; None if another ``__torch_function__`` mode is active."""
    modes = function_mode_stack()
    # A default device changes factories alone, and is guarded; another mode may change anything.
    return [mode.device for mode in modes] if all(map(_is_device, modes)) else None


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Leave all modes but default devices inside."""
    with contextlib.ExitStack() as stack:
        if dispatch_modes():
            stack.enter_context(without_dispatch_modes())
        if function_mode_is_on():
            stack.enter_context(without_function_modes())
        yield


@contextlib.contextmanager
def without_function_modes() -> Iterator[None]:
    """Leave all ``__torch_function__`` modes but default devices inside."""
    found = function_mode_stack()
    set_function_mode_stack([mode for mode in found if _is_device(mode)])
    try:
        yield
    finally:
        set_function_mode_stack(found)


def _is_device(mode: object) -> bool:
    # A subclass of the user's may do other things in its `__torch_function__`.
    return type(mode) is DeviceContext
