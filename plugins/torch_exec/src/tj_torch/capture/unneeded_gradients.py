"""Compute without gradients in programs whose results require none.

A program may compute on parameters and detach what it returns: a network of targets, a metric,
forces. Autograd would save tensors, and make nodes, for a history that nobody can ask for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    PassContext,
    PassRecord,
    Proxy,
    RuleTable,
    Stage,
    TjError,
    Trace,
    Transform,
    bind_outputs,
    is_subclass,
    leaves,
    map_tree,
    requires_grad,
    substituted,
)

__all__ = ["unneeded_gradients"]


def unneeded_gradients() -> Transform:
    """Transform that switches gradients off in such programs, see the module."""
    return Transform("unneeded-gradients", _apply, Stage.ACQUIRED, priority=90, falls_back=True)


def _apply(trace: Trace, context: PassContext) -> Trace:
    if not _unneeded(trace):
        return trace
    values: dict[str, Proxy] = {}
    calls = []
    for call in trace.calls:
        try:
            made = _without(call, values, context.expand)
        except TjError:
            return trace
        # Kernels may be chosen by whether a gradient is required, and round otherwise.
        if made is None:
            return trace
        calls.append(made)
        values |= {p.name: p for p in made.flat_outs}
    outputs = substituted(trace.outputs, values)
    if any(requires_grad(p) for p in _proxies(outputs) if p.name in values):
        return trace  # a view of an input
    record = PassRecord("unneeded-gradients", "torch")
    return trace.replace(calls=tuple(calls), outputs=outputs, history=(*trace.history, record))


def _unneeded(trace: Trace) -> bool:
    """Decide if values require gradients, no result does, and nobody else can see it."""
    if trace.context.get("grad") is False:
        return False
    made = {p.name for call in trace.calls for p in call.flat_outs if requires_grad(p)}
    inputs = {p.name for p in trace.inputs}
    if not made or any(p.name in made for p in _proxies(trace.outputs)):
        return False
    return all(_is_plain(call, inputs) for call in trace.calls)


def _proxies(tree: Any) -> Iterator[Proxy]:
    return (p for p in leaves(tree) if isinstance(p, Proxy))


def _is_plain(call: BoundSymbol, inputs: Collection[str]) -> bool:
    """Test for a call whose effects are the same without gradients; ``inputs`` are by name."""
    effects, values = call.effects, (*call.flat_args, *call.flat_outs)
    unseen = effects.rebinds or "side_effect" in effects.ordered or call.subprograms
    # With gradients on, autograd refuses some writes, and some views of what was written.
    written = (call.flat_args[i] for i in effects.written)
    refusable = any(requires_grad(p) or p.name not in inputs for p in written)
    return not (unseen or refusable or any(map(is_subclass, values)))


def _without(
    call: BoundSymbol, values: dict[str, Proxy], expand: RuleTable[Any]
) -> BoundSymbol | None:
    """``call`` with gradients off, on ``values``; None if other operators then run."""
    args, kwargs = substituted((call.args, call.kwargs), values)
    context = call.context.with_("grad", False)
    bare = call.replace(args=args, kwargs=kwargs, context=context, body=None)
    facts = expand.require(bare).value(bare)
    names = [p.name for p in call.flat_outs]
    made = bind_outputs(bare, facts, names.__getitem__)
    if len(made.flat_outs) != len(names) or _operators(made) != _operators(call):
        return None
    tags = iter(p.tags for p in call.flat_outs)
    made = made if call.body is not None else made.replace(body=None)
    return made.replace(outputs=map_tree(lambda p: p.replace(tags=next(tags)), made.outputs, Proxy))


def _operators(call: BoundSymbol) -> list[str]:
    return [inner.symbol.qualname for inner in call.walk() if inner.body is None]
