"""Pools: places of maxima as PyTorch's kernels find them, and windows no wider than the image."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

    from tj_inductor.arithmetic import Formula

__all__ = ["POOLS", "average", "max_pool", "why_not_padded"]

aten = torch.ops.aten

POOLS = {aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3}
"""Operators of pools, with the numbers of dimensions of their windows."""


WIDEST = 25
"""Number of elements of the largest windows that Inductor has a decomposition for."""


def why_not_padded(call: BoundSymbol) -> str | None:
    """The reason why no region has a pool, or None: its windows are wide, and `max_pool` is of
    Inductor's decomposition.
    """
    kernel = call.args[1]
    padding = dict(call.kwargs).get("padding", call.args[3] if len(call.args) > 3 else ())
    dims = 3 if "pool3d" in call.symbol.path else 2
    window = math.prod(kernel) if len(kernel) == dims else kernel[0] ** dims
    wide = any(padding) and window > WIDEST
    return "maxima of padding would have places outside of the image" if wide else None


def max_pool(formula: Formula, dims: int) -> Formula:
    """Keep the places of maxima inside of the image.

    Inductor pads with negative infinities, and takes the first of equal elements. So the maximum of
    a window which has nothing else would be in the padding, at a place that is negative or that of
    another element.
    """

    def pooled(
        x: torch.Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        found = formula(x, kernel, stride, padding, dilation, ceil_mode)
        if found is NotImplemented or not any(padding):
            return found
        values, places = found
        low = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        sides = (list(side) * dims for side in (stride or kernel, padding, dilation))
        first = _first_places(values, x.shape[-dims:], *(side[:dims] for side in sides))
        return values, torch.where(values == low, first, places)

    return pooled


def _first_places(
    values: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """The place of the first element of each window that is inside of an image of ``size``."""
    dims = len(size)
    each = []
    for n, count in enumerate(values.shape[-dims:]):
        start = torch.arange(count, device=values.device) * stride[n] - padding[n]
        # The windows that begin before the image step over its edge.
        inside = start % dilation[n]
        along = torch.where(start < 0, inside, start)
        each.append(along.view([-1, *[1] * (dims - 1 - n)]))
    return functools.reduce(lambda sum_, n: sum_ * size[n] + each[n], range(1, dims), each[0])


def average(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    *rest: Any,
) -> Any:
    """Average over windows that end where the image does.

    With ``ceil_mode`` a window may be wider, as the one of an EfficientNet, of 2560 by 2560.
    Inductor walks through all of it for each pixel of the result.
    """
    size = x.shape[-2:]
    if not all(isinstance(n, int) for n in size):
        return NotImplemented
    wide, edges = ([*side, *side][:2] for side in (kernel, padding))
    inside = [min(k, n + 2 * p) for k, n, p in zip(wide, size, edges, strict=True)]
    if inside == wide:
        return NotImplemented
    return aten.avg_pool2d.default(x, inside, stride or kernel, padding, *rest)
