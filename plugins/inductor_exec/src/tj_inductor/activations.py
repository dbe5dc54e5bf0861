"""Decompositions of activations, losses and powers for special values, as PyTorch's kernels treat
them.

Inductor's own are equal up to rounding for ordinary numbers. The kernels choose another branch for
zeros, or have NaN for an infinity.
"""

from __future__ import annotations

from typing import Any

import torch

from tj_inductor.arithmetic import HALVES, Formula, widened
from tj_inductor.mixed import in_float

__all__ = ["ACTIVATIONS"]

NONE, MEAN = 0, 1
"""Codes of ``reduction="none"`` and ``"mean"`` in arguments of loss operators."""


def elu(x: torch.Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> torch.Tensor:
    """Exponential linear unit, of which zeros belong to the linear part."""
    below = torch.expm1(x * input_scale) * (alpha * scale)
    return torch.where(x < 0, below, x * scale)


def elu_backward(
    grad: torch.Tensor, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: torch.Tensor
) -> torch.Tensor:
    """Gradient of `elu` by its input or result ``x``.

    Zeros belong to the part below, and so do NaN, but for halves.
    """
    share, wide = widened(grad), widened(x)
    coefficient = alpha * scale
    slope = wide + coefficient if is_result else torch.exp(wide * input_scale) * coefficient
    above = torch.logical_not(wide <= 0) if x.dtype in HALVES else wide > 0
    return torch.where(above, share * scale, share * input_scale * slope).to(grad.dtype)


def logit_backward(grad: torch.Tensor, x: torch.Tensor, eps: Any = None) -> Any:
    """Gradient of `logit` for a negative ``eps``, which cuts nothing off, as if there were none."""
    if eps is None or not eps < 0:
        return NotImplemented
    return torch.ops.aten.logit_backward.default(grad, x)


def power(x: torch.Tensor, exponent: Any) -> Any:
    """Powers of 0.5 and -0.5: roots, which are NaN for a negative infinity, but for float16."""
    if exponent not in (0.5, -0.5) or not x.is_floating_point():
        return NotImplemented
    if x.dtype is torch.float16:  # a tensor as exponent, of which Inductor makes no root
        return torch.pow(x.float(), torch.full((), exponent, device=x.device)).to(x.dtype)
    return torch.rsqrt(x) if exponent < 0 else NotImplemented


def smooth_l1_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> Any:
    """Gradient of the inputs of `smooth_l1_loss`, NaN for a NaN."""
    distance = x - target
    if not x.is_floating_point() or distance.dtype != grad.dtype:
        return NotImplemented
    inside = distance / beta if beta else distance
    slope = torch.where(distance <= -beta, -1.0, torch.where(distance >= beta, 1.0, inside))
    return slope * (grad / x.numel() if reduction == MEAN else grad)


def soft_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN) -> Any:
    """Soft margin loss; the exponential of a half is a half, and may be infinite."""
    if x.dtype not in HALVES or target.dtype != x.dtype:
        return NotImplemented
    loss = torch.log1p(torch.exp(-x * target))
    return loss if reduction == NONE else loss.mean() if reduction == MEAN else loss.sum()


def soft_margin_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> Any:
    """Gradient of the inputs of `soft_margin_loss`, NaN where the exponential is infinite."""
    if not x.is_floating_point() or not x.dtype == target.dtype == grad.dtype:
        return NotImplemented
    power = torch.exp(-target * x)
    share = grad / x.numel() if reduction == MEAN else grad
    return -target * power * share / (power + 1)


def _on_cpu(formula: Formula) -> Formula:
    """Restrict ``formula`` to CPUs: kernels of other devices choose other branches."""

    def changed(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        return formula(x, *args, **more) if x.device.type == "cpu" else NotImplemented

    return changed


aten = torch.ops.aten

ACTIVATIONS: dict[Any, Formula] = {
    operator: _on_cpu(formula)
    for operator, formula in (
        (aten.elu.default, in_float(elu)),
        (aten.elu_backward.default, elu_backward),
        (aten.logit_backward.default, logit_backward),
        (aten.pow.Tensor_Scalar, power),
        (aten.smooth_l1_loss_backward.default, smooth_l1_loss_backward),
        (aten.soft_margin_loss.default, soft_margin_loss),
        (aten.soft_margin_loss_backward.default, soft_margin_loss_backward),
    )
}
