"""Functions that bring their own backward: regions run as a `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["autograd_function"]


def autograd_function(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    /,
    *args: Any,
    non_differentiable_idx: Sequence[int] = (),
    saved_for_backward_idx: Sequence[int] = (),
    dirty_idx: Sequence[int] = (),
) -> Any:
    """What a user's `torch.autograd.Function` computes, with its own backward.

    ``forward(*args)`` returns the function's outputs, and the values that its backward uses;
    ``backward(*tangents, *values)`` the gradients of ``args``. The indices are those of outputs
    that were marked as not differentiable and as written in place, and of values that were saved
    with ``save_for_backward``, whose versions are checked; others were kept on the context.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            outputs, values = forward(*inputs)
            flat = outputs if isinstance(outputs, tuple | list) else (outputs,)
            ctx.mark_dirty(*(flat[i] for i in dirty_idx))
            ctx.mark_non_differentiable(*(flat[i] for i in non_differentiable_idx))
            checked = [i for i in saved_for_backward_idx if isinstance(values[i], torch.Tensor)]
            ctx.save_for_backward(*(values[i] for i in checked))
            ctx.kept = [None if i in checked else value for i, value in enumerate(values)]
            ctx.checked = checked
            return outputs

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            values = list(ctx.kept)
            for i, tensor in zip(ctx.checked, ctx.saved_tensors, strict=True):
                values[i] = tensor
            return backward(*tangents, *values)

    return Function.apply(*args)
