"""Functions that bring their own backward: regions run as a `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from tj_core.errors import TjError

__all__ = ["autograd_function"]


def autograd_function(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    /,
    *args: Any,
    saved: Sequence[int] = (),
    non_differentiable: Sequence[int] = (),
    dirty: Sequence[int] = (),
    differentiable: Literal["any", "once", "unknown"] = "any",
) -> Any:
    """What a user's `torch.autograd.Function` computes, with its own backward.

    ``forward(*args)`` returns the function's outputs, and the values that its backward uses;
    ``backward(*tangents, *values)`` the gradients of ``args``. ``saved`` are the indices of values
    that were saved with ``save_for_backward``, whose versions are checked (others were kept on the
    context); ``non_differentiable`` and ``dirty`` those of outputs that were marked so.
    ``differentiable`` says whether the backward may be differentiated, ``once`` as
    `torch.autograd.function.once_differentiable` says it.

    :raises TjError: from a backward pass with ``create_graph`` where it is ``unknown``.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            outputs, values = forward(*inputs)
            flat = outputs if isinstance(outputs, tuple | list) else (outputs,)
            ctx.mark_dirty(*(flat[i] for i in dirty))
            ctx.mark_non_differentiable(*(flat[i] for i in non_differentiable))
            checked = [i for i in saved if isinstance(values[i], torch.Tensor)]
            ctx.save_for_backward(*(values[i] for i in checked))
            ctx.kept = [None if i in checked else value for i, value in enumerate(values)]
            ctx.checked = checked
            return outputs

        @staticmethod
        @_BACKWARDS[differentiable]
        def backward(ctx: Any, *tangents: Any) -> Any:
            values = list(ctx.kept)
            for i, tensor in zip(ctx.checked, ctx.saved_tensors, strict=True):
                values[i] = tensor
            return backward(*tangents, *values)

    return Function.apply(*args)


def _first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    def checked(ctx: Any, *tangents: Any) -> Any:
        if torch.is_grad_enabled():
            raise TjError(
                "the backward of a torch.autograd.Function that switches gradients on or off "
                "itself was asked for with create_graph=True, which its capture does not allow",
                hint="call that Function in a part of the program that is not jitted "
                "(torch.compiler.disable)",
            )
        return backward(ctx, *tangents)

    return checked


_BACKWARDS: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "any": lambda backward: backward,
    "once": torch.autograd.function.once_differentiable,
    "unknown": _first_order,
}
