"""``tj.jit(f, autocast=torch.bfloat16)``: calls enter autocast, so that captures see its types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import ConfigError, Jitted

from tj_torch.capture.dynamo.adapter import inlined_as
from tj_torch.capture.dynamo.skip_rules import program_of
from tj_torch.dispatch.ahead import compiles_for
from tj_torch.ops.context.ambient import autocast_devices

if TYPE_CHECKING:
    from tj_torch.dispatch.module import Dispatching

__all__ = ["autocasting"]

DTYPES = (torch.bfloat16, torch.float16)


def autocasting(dispatcher: Dispatching) -> Dispatching:
    """``dispatcher``, whose calls run under autocast if its program was jitted so.

    :raises ConfigError: if it is asked for another data type than those that autocast knows.
    """
    dtype = dispatcher.jitted.options.autocast
    if dtype is None:
        return dispatcher
    if dtype not in DTYPES:
        known = " or ".join(map(str, DTYPES))
        raise ConfigError(f"tj.jit: autocast must be {known}, not {dtype!r}")
    return _Autocasting(dispatcher.jitted, dispatcher, dtype)


@dataclass(slots=True)
class _Autocasting:
    jitted: Jitted
    dispatcher: Dispatching
    dtype: torch.dtype

    def take_call(self) -> Callable[..., Any]:
        """Make the callable for the user, which puts autocast around each call."""
        call = self.dispatcher.take_call()
        devices = tuple(d for d in autocast_devices() if _is_there(d))
        program = _within(program_of(call), devices, self.dtype)
        made: Any = _within(call, devices, self.dtype)
        made.compile_for = _within(compiles_for(call), devices, self.dtype)
        return inlined_as(made, program)


def _is_there(device: str) -> bool:
    return device == "cpu" or bool(torch.get_device_module(device).is_available())


def _within(
    function: Callable[..., Any], devices: tuple[str, ...], dtype: torch.dtype
) -> Callable[..., Any]:
    """``function`` under autocast to ``dtype`` on each of ``devices``."""
    (first, *more) = devices
    if more:
        function = _within(function, tuple(more), dtype)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(first, dtype=dtype):
            return function(*args, **kwargs)

    return call
