"""Operators as formulas of others, where Inductor makes worse kernels of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["FORMULAS"]

MEAN = 1
"""The reduction of a loss to its mean, as operators are told it."""


def nll_loss_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the inputs ``[n, classes]`` or ``[classes]``.

    What is not zero is found by comparing classes with targets, a part of any kernel. Inductor
    decomposes it with a scatter: into zeros that are written to memory before, and read again. That
    is a pattern which its passes over whole programs replace; those do not run on regions.
    """
    classes = 0 if inputs.dim() < 2 else 1
    if reduction == MEAN:
        grad = grad / total_weight
    target = target.unsqueeze(classes)
    kept = target != ignore_index
    places = torch.arange(inputs.shape[classes], device=inputs.device)
    here = torch.where(kept, target, 0) == _along(places, inputs, classes)
    one = torch.where(here, -torch.ones((), dtype=inputs.dtype, device=inputs.device), 0)
    if inputs.dim() > grad.dim() > 0:
        grad = grad.unsqueeze(classes)
    if weight is not None:
        grad = grad * _along(weight, inputs, classes)
    return one * torch.where(kept, grad, 0)


def _along(values: torch.Tensor, inputs: torch.Tensor, dim: int) -> torch.Tensor:
    """``values`` along dimension ``dim`` of ``inputs``."""
    return values.view([-1 if i == dim else 1 for i in range(inputs.dim())])


FORMULAS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.nll_loss_backward.default: nll_loss_backward,
}
"""Formulas by operator."""
