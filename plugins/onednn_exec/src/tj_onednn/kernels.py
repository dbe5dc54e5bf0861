"""Products by oneDNN's operators.

Each function takes the arguments of the operation that it replaces. The functions call operators
alone, so that an executor that fuses can trace them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tj_onednn.adapter import CONVOLUTION, LINEAR

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

Post = tuple[str, list[Any], str]
"""Operation that oneDNN applies to a result at once: its name, numbers, an algorithm."""

NOTHING: Post = ("none", [], "")


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, post: Post = NOTHING
) -> Tensor:
    """Compute ``torch.nn.functional.linear``, then ``post``."""
    result: Tensor = LINEAR(input, _without_gaps(weight), bias, *post)
    return result


def _without_gaps(weight: Tensor) -> Tensor:
    """``weight``, or a copy if there are gaps between its rows or columns.

    oneDNN 3.12 multiplies by a weight with gaps in its reference implementation, which takes
    5,000 times as long.
    """
    dense = weight.is_contiguous() or weight.t().is_contiguous()
    return weight if dense else weight.contiguous()


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
    """Compute ``aten.convolution`` in channels_last, with a kernel of one pixel, a stride of 1 and
    no padding.
    """
    return _images(linear(_pixels(input), weight.flatten(1), bias))


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
    pixels, taken = _pixels(grad), _pixels(input)
    found: list[Tensor | None] = [None, None, None]
    if of_input:
        found[0] = _images(linear(pixels, weight.flatten(1).t()))
    if of_weight:
        product = linear(pixels.flatten(0, 2).t(), taken.flatten(0, 2).t())
        found[1] = _images(product.unflatten(0, (-1, 1, 1)))
    if of_bias:
        found[2] = pixels.sum((0, 1, 2))
    return found[0], found[1], found[2]


def _pixels(images: Tensor) -> Tensor:
    """``images``, ``[n, c, h, w]`` in channels_last, as ``[n, h, w, c]`` of the same memory."""
    return images.permute(0, 2, 3, 1)


def _images(pixels: Tensor) -> Tensor:
    return pixels.permute(0, 3, 1, 2)


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
    return torch.stack([mm(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True)])


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
