"""Products as oneDNN's operators: what runs in the place of PyTorch's.

Each takes the arguments of the operation that it stands for. They call nothing but operators, so
that an executor that fuses can trace them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tj_onednn.adapter import CONVOLUTION, LINEAR

__all__ = ["NOTHING", "Post", "addmm", "baddbmm", "bmm", "convolution", "linear", "mm", "rounded"]

Tensor = torch.Tensor
Kernel = Callable[..., Tensor]

Post = tuple[str, list[Any], str]
"""What is computed of a result at once, as oneDNN calls it: a name, numbers, an algorithm."""

NOTHING: Post = ("none", [], "")


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, post: Post = NOTHING
) -> Tensor:
    """``torch.nn.functional.linear``, and then ``post``."""
    result: Tensor = LINEAR(input, weight, bias, *post)
    return result


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
    """``torch.conv2d`` of a batch of images, and then ``post``.

    ``pack`` is given padding, stride, dilation, groups and the sizes of the input, and returns the
    weight for these.
    """
    how = (_pair(padding), _pair(stride), _pair(dilation), groups)
    used = weight if pack is None else pack(*how, tuple(input.shape))
    result: Tensor = CONVOLUTION(input, used, bias, *how, *post)
    return result


def _pair(value: Any) -> tuple[int, int]:
    """A number for both dimensions, or one for each."""
    first, second = (value, value) if isinstance(value, int) else (*value, *value)[:2]
    return first, second


def mm(a: Tensor, b: Tensor) -> Tensor:
    """``aten.mm``."""
    return linear(a, b.t())


def addmm(other: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``aten.addmm`` with factors of 1; ``other`` is a row, or as large as the result."""
    return linear(a, b.t(), other) if other.dim() == 1 else mm(a, b) + other


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """``aten.bmm``: one product after the other."""
    return torch.stack([mm(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True)])


def baddbmm(other: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``aten.baddbmm`` with factors of 1; ``other`` is as large as the result."""
    return bmm(a, b) + other


def rounded(kernel: Kernel) -> Kernel:
    """``kernel`` in bfloat16: its arguments in float32 are rounded to it, and its result."""

    @functools.wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Tensor:
        narrow = [x.bfloat16() if _is_wide(x) else x for x in args]
        named = {k: x.bfloat16() if _is_wide(x) else x for k, x in kwargs.items()}
        return kernel(*narrow, **named).float()

    return run


def _is_wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float32
