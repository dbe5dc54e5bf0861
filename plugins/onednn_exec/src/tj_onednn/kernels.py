"""Products by oneDNN's operators.

Each function takes the arguments of the operation that it replaces. The functions call operators
alone, so that an executor that fuses can trace them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tj_onednn.adapter import CONVOLUTION
from tj_onednn.operators import (
    BMM,
    IMAGES,
    NOTHING,
    PIXELS,
    Post,
    images_of,
    is_by_pixels,
    linear,
    pixels_of,
)

__all__ = [
    "NOTHING",
    "Post",
    "addmm",
    "baddbmm",
    "bmm",
    "convolution",
    "linear",
    "mm",
    "pointwise",
    "pointwise_backward",
    "rounded",
]

Tensor = torch.Tensor
Kernel = Callable[..., Tensor]


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    post: Post = NOTHING,
    pack: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Compute ``torch.conv2d`` of a batch of images, then ``post``.

    ``pack`` takes padding, stride, dilation, groups and the sizes of the input, and returns the
    weight packed for these.
    """
    how = (_pair(padding), _pair(stride), _pair(dilation), groups)
    used = weight if pack is None else pack(*how, tuple(input.shape))
    result: Tensor = CONVOLUTION(input, used, bias, *how, *post)
    return result


def pointwise(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    """Compute ``aten.convolution`` with a kernel of one pixel, a stride of 1 and no padding."""
    result: Tensor = IMAGES(input, weight.flatten(1), bias)
    return result


def pointwise_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute ``aten.convolution_backward`` of `pointwise`."""
    of_input, of_weight, of_bias = output_mask
    found: list[Tensor | None] = [None, None, None]
    if of_input:
        found[0] = IMAGES(grad, weight.flatten(1).t(), None)
    if of_weight:
        product = PIXELS(grad, input)
        # As PyTorch returns it with one thread.
        by_pixels = is_by_pixels(weight)
        found[1] = images_of(product[:, None, None]) if by_pixels else product[..., None, None]
    if of_bias:
        found[2] = pixels_of(grad).sum((0, 1, 2))
    return found[0], found[1], found[2]


def _pair(value: Any) -> tuple[int, int]:
    """Expand a number, or a sequence of one or two, to a pair."""
    first, second = (value, value) if isinstance(value, int) else (*value, *value)[:2]
    return first, second


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``aten.mm``."""
    # A linear layer multiplies by the transposed weight.
    return linear(a, b.t())


def addmm(other: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Compute ``aten.addmm`` with factors of 1; ``other`` is a row, or as large as the result."""
    return linear(a, b.t(), other) if other.dim() == 1 else mm(a, b) + other


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``aten.bmm``, one product after the other."""
    result: Tensor = BMM(a, b)
    return result


def baddbmm(other: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Compute ``aten.baddbmm`` with factors of 1; ``other`` is as large as the result."""
    return bmm(a, b) + other


def rounded(kernel: Kernel) -> Kernel:
    """Run ``kernel`` in bfloat16: round its float32 arguments, and return the result in float32."""

    @functools.wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Tensor:
        narrow = [x.bfloat16() if _is_wide(x) else x for x in args]
        named = {k: x.bfloat16() if _is_wide(x) else x for k, x in kwargs.items()}
        return kernel(*narrow, **named).float()

    return run


def _is_wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float32
