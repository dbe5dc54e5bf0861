"""The product of `Precise` tensors, and its gradient, in float32 arithmetic.

A library of kernels would do this in one pass. The algorithm is Dekker's (1971): the product of two
floats as a sum of two, computed from halves of their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tj_example_subclass.tensor import Precise

if TYPE_CHECKING:
    import torch

__all__ = ["backward", "forward", "product"]


def product(x: Precise, y: Precise, /) -> Any:
    """Compute ``x * y``."""
    high, error = _exact(x.high, y.high)
    error = error + (x.high * y.low + x.low * y.high)
    total = high + error
    return Precise(total, error - (total - high))


def forward(x: Precise, y: Precise, /) -> tuple[Any, Sequence[Any]]:
    """Compute ``x * y``; return it with the values that `backward` takes."""
    return product(x, y), (x, y)


def backward(saved: Sequence[Any], tangent: Precise) -> Sequence[Any]:
    """Compute the gradients of ``x`` and ``y``."""
    x, y = saved
    return product(tangent, y), product(tangent, x)


def _exact(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded product of two tensors, and its rounding error."""
    product = x * y
    (a, b), (c, d) = _halves(x), _halves(y)
    return product, ((a * c - product) + a * d + b * c) + b * d


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split float32 into its upper and lower 12 digits."""
    scaled = x * 4097.0
    upper = scaled - (scaled - x)
    return upper, x - upper
