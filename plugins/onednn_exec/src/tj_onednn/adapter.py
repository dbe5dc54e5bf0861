"""Every private name of PyTorch that this plugin uses: oneDNN's operators, and modes.

What they do is tested in ``tests/test_adapter.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "CONVOLUTION",
    "LINEAR",
    "PACK_CONVOLUTION",
    "PACK_LINEAR",
    "apart",
    "unavailable",
    "version",
]


def unavailable() -> str | None:
    """Reason that there are no operators of oneDNN here; None if there are."""
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch is built without oneDNN"
    missing = [name for name, op in OPERATORS.items() if op is None]
    return f"this PyTorch has no mkldnn.{missing[0]}" if missing else None


def _operator(name: str, overload: str) -> Any:
    return getattr(getattr(torch.ops.mkldnn, name, None), overload, None)


LINEAR: Any = _operator("_linear_pointwise", "default")
"""``(x, weight, bias or None, post operation, its numbers, its algorithm)``: the weight is
transposed, all of ``x`` but its last dimension are rows."""

CONVOLUTION: Any = _operator("_convolution_pointwise", "default")
"""``(x, weight, bias or None, padding, stride, dilation, groups, post operation, its numbers, its
algorithm)``."""

PACK_LINEAR: Any = _operator("_reorder_linear_weight", "default")
"""``(weight, rows)``: the weight in the layout that is best for so many rows."""

PACK_CONVOLUTION: Any = _operator("_reorder_convolution_weight", "default")
"""``(weight, padding, stride, dilation, groups, sizes of the input)``."""

OPERATORS = {
    "_linear_pointwise": LINEAR,
    "_convolution_pointwise": CONVOLUTION,
    "_reorder_linear_weight": PACK_LINEAR,
    "_reorder_convolution_weight": PACK_CONVOLUTION,
}


def version(x: torch.Tensor) -> int:
    """Version counter of ``x``: the number of writes to its memory.

    :raises RuntimeError: for a tensor that was made in inference mode, of which nobody counts.
    """
    return x._version


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Inside, operators run as they are: no modes that interpret, no gradients, no autocast."""
    plain = torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False)
    with _disable_current_modes(), contextlib.ExitStack() as stack:
        for each in plain:
            stack.enter_context(each)
        yield
