"""A gradient written by hand, as plugins and executors have them: layer normalization's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["layer_norm", "layer_norm_backward", "native_layer_norm"]

Tensor = torch.Tensor


def native_layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Any, ...]]:
    """Results of ``torch.native_layer_norm``, and the values that its gradient reads."""
    out, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
    return (out, mean, rstd), (x, weight, bias, mean, rstd, tuple(normalized_shape))


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> tuple[Tensor, tuple[Any, ...]]:
    """Result of ``F.layer_norm``, and the values that its gradient reads."""
    (out, _, _), saved = native_layer_norm(x, normalized_shape, weight, bias, eps)
    return out, saved


def layer_norm_backward(saved: tuple[Any, ...], grad: Tensor, *_: Any) -> tuple[Any, ...]:
    """Gradients of all parameters of both but ``eps``, from that of the result."""
    x, weight, bias, mean, rstd, shape = saved
    wanted = [True, weight is not None, bias is not None]
    gx, gw, gb = torch.ops.aten.native_layer_norm_backward(
        grad, x, shape, mean, rstd, weight, bias, wanted
    )
    return gx, None, gw, gb
