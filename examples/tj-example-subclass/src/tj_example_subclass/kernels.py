"""The product of `Precise` tensors, and its gradient, in float32 alone.

A library of kernels would do this in one pass. The algorithm is Dekker's (1971): the product of
two floats as the sum of two, from halves of their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tj_example_subclass.tensor import Precise

__all__ = ["backward", "forward", "product"]


def product(x: Precise, y: Precise, /) -> Any:
    """``x * y``."""
    high, error = _exact(x.high, y.high)
    error = error + (x.high * y.low + x.low * y.high)
    total = high + error
    return Precise(total, error - (total - high))


def forward(x: Precise, y: Precise, /) -> tuple[Any, Sequence[Any]]:
    """``x * y``, and what `backward` needs."""
    return product(x, y), (x, y)


def backward(saved: Sequence[Any], tangent: Precise) -> Sequence[Any]:
    """The gradients of ``x`` and ``y``."""
    x, y = saved
    return product(tangent, y), product(tangent, x)


def _exact(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded product of two tensors, and what is missing of it."""
    product = x * y
    (a, b), (c, d) = _halves(x), _halves(y)
    return product, ((a * c - product) + a * d + b * c) + b * d


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper and the lower 12 digits of float32."""
    scaled = x * 4097.0
    upper = scaled - (scaled - x)
    return upper, x - upper
