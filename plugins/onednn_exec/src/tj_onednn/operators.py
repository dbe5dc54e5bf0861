"""Operators of the library ``tj_onednn``: several calls of oneDNN's, which other executors see as
one.

In a region, images may have any layout: results have that of the arguments. PyTorch's tag
``flexible_layout`` says so.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from tj_core.extend import contiguous_strides
from tj_torch.extend import opaque_operator

from tj_onednn.adapter import CONVOLUTION, LINEAR

__all__ = [
    "BMM",
    "IMAGES",
    "NOTHING",
    "PIXELS",
    "Post",
    "images_of",
    "is_by_pixels",
    "lies_by_pixels",
    "linear",
    "pixels_of",
]

Tensor = torch.Tensor

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


def is_by_pixels(images: Tensor) -> bool:
    """Test for dense channels_last."""
    return lies_by_pixels(images.shape, images.stride())


def lies_by_pixels(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Test for the ``strides`` of dense channels_last, of images of ``shape``.

    ``is_contiguous(memory_format=...)`` is also true for other strides of single channels or
    pixels, which oneDNN's convolution returns contiguous.
    """
    n, c, h, w = shape
    found = contiguous_strides((n, h, w, c))
    return found is not None and tuple(strides) == tuple(found[i] for i in (0, 3, 1, 2))


def pixels_of(images: Tensor) -> Tensor:
    """``images``, ``[n, c, h, w]``, as ``[n, h, w, c]`` of the same memory."""
    return images.permute(0, 2, 3, 1)


def images_of(pixels: Tensor) -> Tensor:
    """``pixels``, ``[n, h, w, c]``, as ``[n, c, h, w]`` of the same memory."""
    return pixels.permute(0, 3, 1, 2)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``aten.bmm``; each product is copied to its place while the processor's cache has it.

    oneDNN's operator has no argument for a result.
    """
    found = _like_bmm(a, b)
    for x, y, result in zip(a.unbind(), b.unbind(), found.unbind(), strict=True):
        result.copy_(linear(x, y.t()))
    return found


def _like_bmm(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


def _images(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply the pixels of ``images`` ``[n, c, h, w]`` by ``weight`` ``[d, c]``: ``[n, d, h,
    w]``.
    """
    if is_by_pixels(images):
        return images_of(linear(pixels_of(images), weight, bias))
    # Contiguous, with a weight that nobody takes for one in channels_last: so is the result.
    kernel = weight.contiguous()[..., None, None]
    how = (0, 0), (1, 1), (1, 1), 1
    result: Tensor = CONVOLUTION(images.contiguous(), kernel, bias, *how, *NOTHING)
    return result


def _like_images(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    n, _, h, w = images.shape
    if is_by_pixels(images):
        return images_of(images.new_empty(n, h, w, weight.shape[0]))
    return images.new_empty(n, weight.shape[0], h, w)


def _pixels(grad: Tensor, images: Tensor) -> Tensor:
    """Sum ``grad`` ``[n, d, h, w]`` times ``images`` ``[n, c, h, w]`` over pixels: ``[d, c]``."""
    if is_by_pixels(grad) or is_by_pixels(images):
        rows, others = (pixels_of(x).reshape(-1, x.shape[1]).contiguous() for x in (grad, images))
        return linear(rows.t(), others.t())
    pairs = zip(grad.contiguous().flatten(2), images.contiguous().flatten(2), strict=True)
    first, *more = (linear(*pair) for pair in pairs)
    for product in more:
        first.add_(product)
    return first


def _like_pixels(grad: Tensor, images: Tensor) -> Tensor:
    return grad.new_empty(grad.shape[1], images.shape[1])


LIBRARY = torch.library.Library("tj_onednn", "DEF")


_registered = functools.partial(opaque_operator, LIBRARY)

BMM = _registered("bmm(Tensor a, Tensor b) -> Tensor", _bmm, _like_bmm)
IMAGES = _registered(
    "images(Tensor images, Tensor weight, Tensor? bias) -> Tensor",
    _images,
    _like_images,
    torch.Tag.flexible_layout,
)
PIXELS = _registered(
    "pixels(Tensor grad, Tensor images) -> Tensor",
    _pixels,
    _like_pixels,
    torch.Tag.flexible_layout,
)
