"""Backwards that need no conversion and no question: nothing is on around them, tangents are plain.

Almost all are so, and in small programs the questions take longer than kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tj_torch.internal import (
    autocast_is_on,
    dispatch_modes,
    forward_level,
    function_modes,
    keys,
)

__all__ = ["Forms", "forms", "is_alone"]


Forms = tuple[tuple[int, tuple[int, ...], torch.Size, torch.dtype] | None, ...]


def forms(tangents: Sequence[torch.Tensor | None]) -> Forms | None:
    """Facts about ``tangents`` that decide which program takes them, and if it takes them as they
    are; None if one has no strides.
    """
    try:
        return tuple(
            [t if t is None else (keys(t), t.stride(), t.shape, t.dtype) for t in tangents]
        )
    except RuntimeError:  # a sparse one
        return None


def is_alone() -> bool:
    """Check that gradients are not recorded, and that no mode, level or autocast is on."""
    return (
        not torch.is_grad_enabled()
        and not dispatch_modes()
        and not function_modes()
        and forward_level() < 0
        and not autocast_is_on()
    )
