"""Gradients of group norms, elementwise in the layout of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["group_norm_backward"]


def group_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    mask: list[bool],
) -> Any:
    """Gradients of ``x`` ``[n, c, ...]``, weight and bias ``[c]`` for ``grad`` ``[n, c, ...]``.

    With ``y = w (x - m) r + b`` and sums over the places and channels of a group of size ``s``:
    ``dx = g w r + a x + d``, ``a = r^3 (m sum(g w) - sum(g w x)) / s``, ``d = -a m - r sum(g w) /
    s``. PyTorch's decomposition views an image as ``[n, groups, c / groups, places]``, which in
    channels_last is written to memory in that order, in eight times eager's time.
    """
    if x.device.type != "cpu" or x.dim() < 3:
        return NotImplemented
    inner = list(range(2, x.dim()))
    kept = [x.shape[0], channels, *(1 for _ in inner)]
    grouped = [x.shape[0], groups, channels // groups]
    products = (grad * x).sum(inner).view(grouped)
    sums = grad.sum(inner).view(grouped)
    mean, rstd = mean.view(*grouped[:2], 1), rstd.view(*grouped[:2], 1)
    made: Any = None
    if mask[0]:
        factor = rstd.expand(grouped)
        weighted, weighted_products = sums, products
        if weight is not None:
            w = weight.view(1, groups, channels // groups)
            factor, weighted, weighted_products = factor * w, sums * w, products * w
        total = weighted.sum(2, keepdim=True)
        share = 1.0 / (places * (channels // groups))
        slope = (total * mean - weighted_products.sum(2, keepdim=True)) * rstd**3 * share
        rest = -slope * mean - total * rstd * share
        slope, rest = slope.expand(grouped), rest.expand(grouped)
        made = grad * factor.reshape(kept) + x * slope.reshape(kept) + rest.reshape(kept)
    of_weight = ((products - sums * mean) * rstd).sum(0).view(channels) if mask[1] else None
    of_bias = sums.sum(0).view(channels) if mask[2] else None
    return made, of_weight, of_bias
