"""Dynamic context of the calling thread: read it, and enter its autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from tj_core.extend import PLAIN_CONTEXT, Context

from tj_torch.ops.context.entering import AUTOCAST

__all__ = [
    "ambient_autocast",
    "ambient_context",
    "autocast_as_in",
    "autocast_devices",
    "autocast_is_on",
    "dtype_name",
    "is_on",
]


def autocast_devices() -> tuple[str, ...]:
    """Device types whose autocast a trace's context records."""
    return ("cpu", "cuda")


def ambient_context() -> Context:
    """Context of the calling thread: grad and inference mode, and enabled autocasts."""
    values: dict[str, Any] = {"grad": torch.is_grad_enabled()}
    if torch.is_inference_mode_enabled():
        values["inference"] = True
    return ambient_autocast().over(Context(tuple(sorted(values.items()))))


def autocast_is_on() -> bool:
    """Test for enabled autocast in the calling thread."""
    return any(map(torch.is_autocast_enabled, autocast_devices()))


def ambient_autocast() -> Context:
    """Context of the calling thread with the enabled autocasts alone."""
    if not autocast_is_on():
        return PLAIN_CONTEXT
    devices = filter(torch.is_autocast_enabled, autocast_devices())
    return Context.of(**{AUTOCAST + d: dtype_name(torch.get_autocast_dtype(d)) for d in devices})


@contextlib.contextmanager
def autocast_as_in(context: Context) -> Iterator[None]:
    """Enter autocast for the devices and data types in ``context``, and disable it for others."""
    with contextlib.ExitStack() as stack:
        for device in autocast_devices():
            name = context.get(AUTOCAST + device)
            # Entering a context takes microseconds, in each backward.
            if name or torch.is_autocast_enabled(device):
                dtype = getattr(torch, name) if name else None
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=bool(name)))
        yield


def is_on(context: Context) -> bool:
    """Test for enabled autocast, for any device."""
    return any(key.startswith(AUTOCAST) and value for key, value in context.items)


def dtype_name(dtype: torch.dtype) -> str:
    """Name of ``dtype`` as contexts have it."""
    return str(dtype).removeprefix("torch.")
