"""Run captured forward and backward as a `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tj_core.extend import TjError

__all__ = ["Read", "autograd_function", "check_reads"]


class Read(Protocol):
    """A constant of the program that a captured backward reads."""

    @property
    def name(self) -> str:
        """Name in the program."""

    @property
    def value(self) -> Any:
        """Value at capture."""

    def current(self) -> Any:
        """Value now."""


def check_reads(reads: Sequence[Read]) -> None:
    """Check that constants a backward reads have the values they had at capture.

    :raises TjError: naming the first that has changed.
    """
    for read in reads:
        now = read.current()
        if not _is_same(now, read.value):
            raise TjError(
                f"{read.name}, which the backward of a torch.autograd.Function reads, was "
                f"{read.value!r} in the forward, and is {now!r} in the backward",
                hint="keep on ctx what a backward is to know, or write the name in small letters, "
                "so that it does not look like a constant",
            )


def _is_same(now: Any, before: Any) -> bool:
    if now is before or isinstance(before, torch.Tensor):
        return now is before
    # `1 == True == 1.0`, and a backward may do other things for each.
    return type(now) is type(before) and now == before


def autograd_function(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    /,
    *args: Any,
    saved: Sequence[int] = (),
    non_differentiable: Sequence[int] = (),
    dirty: Sequence[int] = (),
    once: bool = False,
    reads: Sequence[Read] = (),
) -> Any:
    """Apply a user's `torch.autograd.Function` with its own backward.

    ``forward(*args)`` returns the function's outputs and the values that its backward uses;
    ``backward(*tangents, *values)`` returns the gradients of ``args``. ``saved`` are indices of
    values saved with ``save_for_backward``, whose versions are checked; the others were kept on
    the context. ``non_differentiable`` and ``dirty`` are indices of outputs marked so.
    With ``once``, differentiating the backward raises. ``reads`` are constants that the backward
    reads: it raises if one has changed.
    """
    pair = _Pair(forward, backward, saved, non_differentiable, dirty, reads)
    return (_Once if once else _Function).apply(pair, *args)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Forward and backward of a function, and the marks of its values and outputs."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    saved: Sequence[int]
    non_differentiable: Sequence[int]
    dirty: Sequence[int]
    reads: Sequence[Read]


class _Function(torch.autograd.Function):
    """Function that runs a `_Pair`, its first argument."""

    @staticmethod
    def forward(ctx: Any, pair: _Pair, *inputs: Any) -> Any:
        outputs, values = pair.forward(*inputs)
        flat = outputs if isinstance(outputs, tuple | list) else (outputs,)
        ctx.mark_dirty(*(flat[i] for i in pair.dirty))
        ctx.mark_non_differentiable(*(flat[i] for i in pair.non_differentiable))
        ctx.checked = [i for i in pair.saved if isinstance(values[i], torch.Tensor)]
        ctx.save_for_backward(*(values[i] for i in ctx.checked))
        # A saved tensor that is on the context, too, would not be freed with the graph.
        ctx.kept = [None if i in ctx.checked else value for i, value in enumerate(values)]
        ctx.pair = pair
        return outputs

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        check_reads(ctx.pair.reads)
        values = list(ctx.kept)
        # `saved_tensors` raises once they are freed, even if there were none.
        for i, tensor in zip(ctx.checked, ctx.saved_tensors if ctx.checked else (), strict=True):
            values[i] = tensor
        gradients = ctx.pair.backward(*tangents, *values)
        return (None, *gradients) if isinstance(gradients, tuple | list) else (None, gradients)


class _Once(_Function):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: Any) -> Any:
        return _Function.backward(ctx, *tangents)
