"""The dynamic context of a call: how each key is spelled in Python, and entering a whole context.

=====================  =============================================================
``grad``               bool: grad mode
``inference``          bool: inference mode
``autocast.<device>``  the name of a data type (``"bfloat16"``); None or False is off
``device``             default device of factories (``"cuda:0"``)
``sdpa``               names of the attention backends allowed, as a tuple
=====================  =============================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from tj_core.extend import Context, Resetting

from tj_torch.torch_private import ops as private

__all__ = [
    "AUTOCAST",
    "SPELLINGS",
    "entered",
    "expansion_context",
    "spelling",
    "spellings",
    "surroundings",
]

AUTOCAST = "autocast."
"""What the keys of autocast begin with; the device's type follows."""


def _grad(value: Any) -> str:
    return "torch.enable_grad()" if value else "torch.no_grad()"


def _inference(value: Any) -> str:
    return "torch.inference_mode()" if value else "torch.inference_mode(False)"


def _device(value: Any) -> str:
    return f'torch.device("{value}")'


def _sdpa(value: Any) -> str:
    backends = ", ".join(f"torch.nn.attention.SDPBackend.{name}" for name in value)
    return f"torch.nn.attention.sdpa_kernel([{backends}])"


def _autocast(device: str) -> Callable[[Any], str]:
    def spell(value: Any) -> str:
        if not value:
            return f'torch.autocast("{device}", enabled=False)'
        return f'torch.autocast("{device}", dtype=torch.{value})'

    return spell


SPELLINGS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {"inference": Resetting(_inference, ("grad",)), "grad": _grad, "device": _device, "sdpa": _sdpa}
)
"""Per key (autocast's apart), the text of a context manager that establishes a value.

In the order they must be entered: inference mode sets grad mode, too.
"""


def spelling(key: str) -> Callable[[Any], str]:
    """The function from a value of ``key`` to the text of a context manager.

    :raises LookupError: for an unknown key.
    """
    if key.startswith(AUTOCAST):
        return _autocast(key.removeprefix(AUTOCAST))
    return SPELLINGS[key]


def spellings(devices: Iterable[str]) -> dict[str, Callable[[Any], str]]:
    """All keys' functions, with autocast for ``devices``; for a table that needs every key."""
    return {**SPELLINGS, **{AUTOCAST + d: _autocast(d) for d in devices}}


@contextlib.contextmanager
def entered(context: Context) -> Iterator[None]:
    """Establish ``context``; keys it lacks stay as they are.

    What is entered is what the printed text says.

    :raises LookupError: for an unknown key.
    """
    order = list(SPELLINGS)
    items = sorted(context.items, key=lambda i: order.index(i[0]) if i[0] in order else len(order))
    with contextlib.ExitStack() as stack:
        for key, value in items:
            stack.enter_context(eval(spelling(key)(value), {"torch": torch}))
        yield


@contextlib.contextmanager
def surroundings(grad: bool, rest: Context) -> Iterator[None]:
    """Where fake tensors run, whatever is ambient, for what `expansion_context` gives.

    Outside of inference mode, autocast as ``rest`` says and uncached.
    """
    with torch.inference_mode(False), private.no_autocast(), entered(rest):
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            with torch.set_grad_enabled(grad):
                yield
        finally:
            torch.set_autocast_cache_enabled(cached)


def expansion_context(context: Context) -> tuple[bool, Context]:
    """Grad mode of an expansion under ``context``, and what else must be entered for it.

    Operators lose their decomposition in inference mode, so it is replaced by its grad mode.
    """
    values = dict(context.items)
    inference = values.pop("inference", False)
    grad = values.pop("grad", True) and not inference
    return grad, Context(tuple(values.items()))
