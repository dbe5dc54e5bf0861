"""Embedding bags: gradients added up row by row, and bags of equal size with the last one's end."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Constant,
    PassContext,
    Proxy,
    Replacement,
    RuleTable,
    Stage,
    TensorProxy,
    Trace,
    Transform,
    leaves,
)

from tj_inductor.opening import opened

__all__ = ["bag_backward", "why_not_by_rows", "with_ends"]

aten = torch.ops.aten

SUM, MEAN = 0, 1
"""Numbers of the modes of `embedding_bag` whose gradients are by rows."""


def bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bags: torch.Tensor,
    sizes: torch.Tensor,
    maxima: torch.Tensor,
    rows: Any,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    factors: torch.Tensor | None,
    padding: int = -1,
) -> Any:
    """Gradient ``[rows, d]`` of the table of ``aten._embedding_bag``, for ``grad`` ``[n, d]``.

    PyTorch's kernel sorts the ``indices`` first, which takes longer than all additions. ``bags``
    has the bag of each index, or is empty where the forward needed none; ``sizes`` are those of the
    bags ``[n]``, which begin at ``offsets``.
    """
    count = indices.shape[0]
    if bags.shape[0] == 0:
        ends = offsets.new_zeros([count + 1])
        begun = aten.index_put.default(ends, [offsets], torch.ones_like(offsets), True)
        bags = begun.cumsum(0)[:count] - 1
    if mode == MEAN:
        grad = grad * sizes.clamp(min=1).to(grad.dtype).reciprocal().unsqueeze(1)
    added = aten.index.Tensor(grad, [bags])
    if padding >= 0:
        added = added.masked_fill((indices == padding).unsqueeze(1), 0)
    return aten.index_put.default(grad.new_zeros([rows, grad.shape[1]]), [indices], added, True)


def why_not_by_rows(call: BoundSymbol) -> str | None:
    """Reason why the gradient ``call`` is left to PyTorch's kernel, or None."""
    grad, *_, by_frequency, mode, sparse, factors, _ = _plain([*call.args, -1][:12])
    wide = isinstance(grad, TensorProxy) and grad.dtype.name in ("float32", "float64")
    if wide and grad.device.type == "cpu" and not (by_frequency or sparse or factors):
        return None if mode in (SUM, MEAN) else "PyTorch's kernel takes the largest elements"
    return "PyTorch's kernel adds them otherwise"


def _plain(args: list[Any]) -> list[Any]:
    return [x.value if isinstance(x, Constant) else x for x in args]


# ---------------------------------------------------------------------------- ends of bags


BAGS = ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
RANGE = "aten.arange.start_step"


def with_ends() -> Transform:
    """Make the transform: bags that begin at a range of offsets get the end of the last one, too.

    PyTorch's kernel needs the ends of all bags, and without the last one it copies the offsets.
    """
    return Transform("inductor-bags", _with_ends, after=Stage.SPLIT, falls_back=True)


def _with_ends(trace: Trace, context: PassContext) -> Trace:
    if trace.stage < Stage.SPLIT or not any(map(_has_bags, trace.calls)):
        return trace
    trace = opened(trace, context, _is_around_bags)
    read = {p.name for call in trace.calls for p in call.flat_args}
    read.update(p.name for p in leaves(trace.outputs) if isinstance(p, Proxy))
    made = {p.name: c for c in trace.calls if c.symbol.qualname == RANGE for p in c.flat_outs}
    rules = RuleTable[Any]("inductor-bags")
    for name in BAGS:
        rules.set(name, functools.partial(_ended, made=made, read=read))
    return context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)


def _has_bags(call: BoundSymbol) -> bool:
    inner = call.body.calls if call.body is not None else ()
    return call.symbol.qualname in BAGS or any(map(_has_bags, inner))


def _is_around_bags(call: BoundSymbol) -> bool:
    return call.symbol.qualname not in BAGS and _has_bags(call)


def _ended(
    call: BoundSymbol, edit: CallEditor, *, made: Mapping[str, BoundSymbol], read: Collection[str]
) -> Replacement | None:
    """The bags of ``call`` with their last end, for whose offsets a call ``made`` a range.

    Other results than the bags would have another size, so nothing may ``read`` them.
    """
    (table, indices, offsets), given = call.args[:3], _plain([*call.args[3:]])
    options = [*given, *_DEFAULTS[len(given) :]]
    bags, *others = call.outputs
    begins = made.get(offsets.name)
    if begins is None or call.kwargs or options[4] or bags.device.type != "cpu":
        return None
    first, last, step = _plain([*begins.args])
    whole = all(isinstance(n, int) for n in (first, last, step, *indices.shape))
    if not whole or first != 0 or (last,) != indices.shape or last <= 0 or last % step:
        return None
    if any(p.name in read for p in others):
        return None
    ends = edit.call(RANGE, 0, last + step, step, **dict(begins.kwargs))
    names = tuple(p.name for p in call.outputs)
    options[4] = True
    ended = edit.call(call.symbol.qualname, table, indices, ends.outputs, *options, outputs=names)
    same = ended.outputs[0].replace(tags=bags.tags, requires_grad=bags.requires_grad) == bags
    return Replacement((ends, ended)) if same else None


_DEFAULTS = (False, 0, False, None, False, -1)
