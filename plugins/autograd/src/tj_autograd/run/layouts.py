"""Layouts of tangents, which choose the backward program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tj_core.extend import Proxy, TensorProxy, is_subclass
from tj_torch.internal import is_sized

from tj_autograd.joint.build import DEFAULT_LAYOUT

__all__ = ["default_layout", "layout_of"]


def default_layout(tangent: Proxy) -> Any:
    """Layout of a tangent in the first backward program."""
    assert isinstance(tangent, TensorProxy)
    has_usual = is_sized(tangent) or is_subclass(tangent)
    return DEFAULT_LAYOUT if has_usual else tangent.strides


def layout_of(expected: Proxy) -> Callable[[torch.Tensor], Any]:
    """Make the function that computes the layout of a tangent for ``expected``."""
    if is_subclass(expected):
        return _usual
    return _expanded_or_usual if is_sized(expected) else torch.Tensor.stride


def _usual(_: torch.Tensor) -> Any:
    return DEFAULT_LAYOUT


def _expanded_or_usual(tangent: torch.Tensor) -> Any:
    """Strides of an expanded scalar, as the gradient of a sum has; else the default layout.

    The strides of an expanded scalar are zero, and so free of symbols.
    """
    strides = tangent.stride()
    steps = (step for n, step in zip(tangent.shape, strides, strict=True) if n > 1)
    return DEFAULT_LAYOUT if tangent.numel() < 2 or any(steps) else strides
