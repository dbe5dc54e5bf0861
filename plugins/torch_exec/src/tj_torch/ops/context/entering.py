"""Dynamic context of a call: spell each key in Python, and enter a whole context.

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
from tj_core.extend import Context
from tj_core.internal import Resetting

from tj_torch.ops.context.cast_cache import keeping_no_casts
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
"""Prefix of autocast's keys; the device type follows."""


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
"""Text of the context manager for a value, per key except autocast's.

In the order they must be entered: inference mode sets grad mode, too.
"""


def spelling(key: str) -> Callable[[Any], str]:
    """Function from a value of ``key`` to the text of a context manager.

    :raises LookupError: for an unknown key.
    """
    if key.startswith(AUTOCAST):
        return _autocast(key.removeprefix(AUTOCAST))
    return SPELLINGS[key]


def spellings(devices: Iterable[str]) -> dict[str, Callable[[Any], str]]:
    """Functions of all keys, with autocast for ``devices``; for tables that list every key."""
    return {**SPELLINGS, **{AUTOCAST + d: _autocast(d) for d in devices}}


@contextlib.contextmanager
def entered(context: Context) -> Iterator[None]:
    """Enter ``context``; other keys stay as they are.

    Evaluates the same text that is printed in programs.

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
    """Enter the context for fake tensors from `expansion_context`, whatever is active outside.

    Inference mode is off, autocast as in ``rest``, and its cache off.
    """
    # Autograd refuses to save tensors that were made in inference mode.
    # The cache would keep casts of this run's fake tensors.
    with (
        torch.inference_mode(False),
        private.no_autocast(),
        entered(rest),
        keeping_no_casts(),
        torch.set_grad_enabled(grad),
    ):
        yield


def expansion_context(context: Context) -> tuple[bool, Context]:
    """Grad mode of an expansion under ``context``, and the rest of the context to enter.

    Inference mode is replaced by no-grad mode, since operators are not decomposed in it.
    """
    values = dict(context.items)
    inference = values.pop("inference", False)
    # Nothing requires grad in inference mode, whatever the grad mode.
    grad = values.pop("grad", True) and not inference
    return grad, Context(tuple(values.items()))
