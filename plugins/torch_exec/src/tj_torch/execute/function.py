"""Functions that bring their own backward: regions run as a `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    pair = _Pair(forward, backward, saved, non_differentiable, dirty)
    return _FUNCTIONS[differentiable].apply(pair, *args)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two halves of a function, and how values and outputs are marked."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    saved: Sequence[int]
    non_differentiable: Sequence[int]
    dirty: Sequence[int]


class _Function(torch.autograd.Function):
    """Runs a pair; the pair itself is the first argument."""

    @staticmethod
    def forward(ctx: Any, pair: _Pair, *inputs: Any) -> Any:
        outputs, values = pair.forward(*inputs)
        flat = outputs if isinstance(outputs, tuple | list) else (outputs,)
        ctx.mark_dirty(*(flat[i] for i in pair.dirty))
        ctx.mark_non_differentiable(*(flat[i] for i in pair.non_differentiable))
        ctx.checked = [i for i in pair.saved if isinstance(values[i], torch.Tensor)]
        ctx.save_for_backward(*(values[i] for i in ctx.checked))
        ctx.kept = [None if i in ctx.checked else value for i, value in enumerate(values)]
        ctx.pair = pair
        return outputs

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        values = list(ctx.kept)
        # Not asked for where there are none: freed, they are an error even then.
        for i, tensor in zip(ctx.checked, ctx.saved_tensors if ctx.checked else (), strict=True):
            values[i] = tensor
        gradients = ctx.pair.backward(*tangents, *values)
        return (None, *gradients) if isinstance(gradients, tuple | list) else (None, gradients)


class _Once(_Function):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: Any) -> Any:
        return _Function.backward(ctx, *tangents)


class _FirstOrder(_Function):
    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        if torch.is_grad_enabled():
            raise TjError(
                "the backward of a torch.autograd.Function that switches gradients on or off "
                "itself was asked for with create_graph=True, which its capture does not allow",
                hint="call that Function in a part of the program that is not jitted "
                "(torch.compiler.disable)",
            )
        return _Function.backward(ctx, *tangents)


_FUNCTIONS: Mapping[str, type[_Function]] = {
    "any": _Function,
    "once": _Once,
    "unknown": _FirstOrder,
}
