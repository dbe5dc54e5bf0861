"""The calls of a functional program that stand for those of the acquired program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Context,
    Effects,
    Expand,
    Proxy,
    RuleTable,
    Symbol,
    TensorProxy,
    ViewStep,
    bind_outputs,
    leaves,
    requires_grad,
)

from tj_torch.functionalize.objects import Unsuitable, reads_data
from tj_torch.ops.metadata_mutation import is_autograd_change
from tj_torch.ops.schema_facts import changes_unseen

__all__ = [
    "computed",
    "data",
    "detach",
    "maker",
    "may_be_saved",
    "on_behalf",
    "out_of_place",
    "output_place",
    "problem",
    "versioned",
]


def on_behalf(
    call: BoundSymbol, symbol: Symbol, args: Any, kwargs: Any, context: Context
) -> BoundSymbol:
    """A new call that does some of what ``call`` does, without outputs yet."""
    return BoundSymbol(
        symbol,
        args,
        kwargs,
        context=context,
        source=call.source,
        parent=call.label,
        tags=call.tags,
    )


def out_of_place(call: BoundSymbol) -> BoundSymbol:
    """The view that a call like ``x.t_()`` turns its argument into."""
    path = call.symbol.name.removesuffix("_")
    owner, _, name = path.rpartition(".")
    if owner != "Tensor" or not hasattr(torch.Tensor, name):
        raise Unsuitable(f"{call.symbol} changes metadata in a way that no view does")
    return call.replace(symbol=Symbol("torch", path), effects=Effects(), outputs=None, body=None)


def computed(call: BoundSymbol, out: TensorProxy) -> TensorProxy:
    """``out`` as the body of ``call`` computes it."""
    if call.body is None:
        return out
    pairs = zip(leaves(call.outputs), leaves(call.body.outputs), strict=True)
    inner = next(formal for p, formal in pairs if p is out)
    return inner if isinstance(inner, TensorProxy) else out


def versioned(call: BoundSymbol, value: Proxy, count: int) -> BoundSymbol:
    """``call``, which computes what is written ``count`` times then, by its own write, too."""
    kwargs = dict(call.kwargs)
    place = call.flat_outs.index(value)
    versions = [0] * len(kwargs["mutated"])
    versions[place] = max(count - 1, 0)  # a write that nobody counts leaves none before it
    before = kwargs.get("versions", versions)
    merged = tuple(map(max, before, versions))
    return call.replace(kwargs=tuple({**kwargs, "versions": merged}.items()))


def output_place(step: ViewStep) -> int:
    """Where the view that ``step`` makes is among the tensors that its call returns."""
    tensors = [i for i, p in enumerate(step.call.flat_outs) if isinstance(p, TensorProxy)]
    return tensors.index(step.output)


def data(call: BoundSymbol, expand: RuleTable[Expand]) -> BoundSymbol:
    """``x.data``, however it was captured, by an operation that says what it does."""
    return _instead(call, Symbol("builtins", "getattr"), (call.args[0], "data"), expand)


def detach(call: BoundSymbol, expand: RuleTable[Expand]) -> BoundSymbol:
    """A call that takes a tensor, as an ordinary view that autograd does not look through."""
    return _instead(call, Symbol("torch", "detach"), call.args[:1], expand)


def _instead(
    call: BoundSymbol, symbol: Symbol, args: tuple[Any, ...], expand: RuleTable[Expand]
) -> BoundSymbol:
    bare = call.replace(symbol=symbol, args=args, effects=Effects(), outputs=None)
    facts = expand.require(bare).value(bare)
    return bind_outputs(bare, facts, lambda i: call.flat_outs[i].name)


def maker(calls: Sequence[BoundSymbol], value: Proxy) -> int:
    """The place of the call that ``value`` is a result of."""
    (place,) = [i for i, call in enumerate(calls) if value in call.flat_outs]
    return place


def may_be_saved(value: Proxy, calls: Iterable[BoundSymbol]) -> bool:
    """Whether one of ``calls`` carries a gradient, and is given ``value`` for more than a view."""
    return any(
        any(map(requires_grad, call.flat_outs))
        and any(p.name == value.name for p in call.flat_args)
        and not any(a.kind == "arg" for a in call.effects.aliases)
        for call in calls
    )


def problem(call: BoundSymbol) -> str | None:
    """Why ``call`` cannot be part of a functional program, or None."""
    effects = call.effects
    if reads_data(call):
        return None
    if call.regions and (effects.mutates or effects.rebinds or effects.aliases):
        return f"{call.symbol} writes, or returns what it is given, inside of its functions"
    if changes_unseen(call) and not is_autograd_change(call):
        return f"{call.symbol} changes its argument, and does not say how"
    opaque = call.body is None and not is_autograd_change(call)
    if "side_effect" in effects.ordered and opaque and call.flat_args:
        return f"what {call.symbol} does is not known"
    if call.context.get("inference"):
        return "it runs in inference mode"
    return None
