"""Operators on lists of tensors, as operators on each: a region fuses them across lists.

On CPUs PyTorch computes them tensor by tensor, by the operators in `FORMS`, and makes a list of new
values for each. Apart, they are written in place, and no value between two lists is in memory. What
becomes of one tensor stands together, so that these parts repeat each other, and one is compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    PassContext,
    PassRecord,
    Proxy,
    Replacement,
    RuleTable,
    Stage,
    TensorProxy,
    Trace,
    TraceEditor,
    Transform,
)

from tj_inductor.operators import can_fuse

__all__ = ["separating"]

MOST = 1024
"""Most calls that lists of one program become: the time of compiling grows with them."""

FORMS = {
    **{
        f"{name}.{overload}": f"{name}.Tensor"
        for name in ("add", "sub", "mul", "div")
        for overload in ("Scalar", "ScalarList", "List", "Tensor")
    },
    **{
        f"{name}.{overload}": f"{name}.default"
        for name in ("addcdiv", "addcmul")
        for overload in ("Scalar", "ScalarList")
    },
    "lerp.List": "lerp.Tensor", "lerp.Scalar": "lerp.Scalar", "lerp.ScalarList": "lerp.Scalar",
    "maximum.List": "clamp_min.Tensor", "minimum.List": "clamp_max.Tensor",
    **{f"{name}.default": f"{name}.default" for name in ("abs", "neg", "reciprocal", "sqrt")},
}  # fmt: skip
"""The operator of each tensor, by the part of the list operator's name after ``_foreach_``."""

NAMED = ("addcdiv", "addcmul")
"""Operators whose number is the keyword ``value``."""

PREFIX = "aten._foreach_"


def separating() -> Transform:
    """Make the transform. Gradients are taken before, of the operators on lists."""
    return Transform("inductor-lists", _separated, after=Stage.SPLIT, falls_back=True)


def _separated(trace: Trace, context: PassContext) -> Trace:
    if trace.stage < Stage.SPLIT or not any(map(_on_lists, trace.calls)):
        return trace
    opened = RuleTable[Any]("open")
    opened.set("*", _open)
    trace = context.rewrite(trace, opened, into_bodies=False, into_subprograms=False)
    made_of: set[str] = set()

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        made = _apart(call, edit)
        if made is None or len(made_of) + len(made) > MOST:
            return None
        made_of.update(one.label for one in made)
        return Replacement(made)

    rules: RuleTable[Any] = RuleTable("inductor-lists")
    for name in FORMS:
        rules.set(f"{PREFIX}{name}", rule)
    trace = context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)
    return _in_chains(trace, made_of, context) if made_of else trace


def _open(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
    return edit.inline() if _holds_lists(call) and edit.can_inline() else None


def _in_chains(trace: Trace, moved: Collection[str], context: PassContext) -> Trace:
    """``trace`` with neighbours among the calls ``moved`` in chains, in which one reads the other.

    No two calls of different chains depend on each other.
    """
    editor = TraceEditor(trace, context.tags)
    for together, calls in itertools.groupby(trace.calls, lambda call: call.label in moved):
        for call in _by_chain(list(calls)) if together else calls:
            editor.append(editor.moved(call))
    return editor.done(PassRecord(context.name, context.plugin))


def _by_chain(calls: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Calls of one result each, in the order of the first call of each chain."""
    chains: dict[str, list[BoundSymbol]] = {}
    for call in calls:
        read = {p.name: chains[p.name] for p in call.flat_args if p.name in chains}
        before = list({id(chain): chain for chain in read.values()}.values())
        first = before[0] if before else []
        for chain in before[1:]:
            first += chain
            chains.update(dict.fromkeys((c.flat_outs[0].name for c in chain), first))
        first.append(call)
        chains[call.flat_outs[0].name] = first
    return [call for chain in {id(c): c for c in chains.values()}.values() for call in chain]


def _on_lists(call: BoundSymbol) -> bool:
    return call.symbol.qualname.startswith(PREFIX) or _holds_lists(call)


def _holds_lists(call: BoundSymbol) -> bool:
    return call.body is not None and any(map(_on_lists, call.body.calls))


def _apart(call: BoundSymbol, edit: CallEditor) -> tuple[BoundSymbol, ...] | None:
    """The calls on each tensor; None if one cannot be fused, or has another result."""
    name = call.symbol.qualname.removeprefix(PREFIX)
    lists, shared = _lists(call), dict(call.kwargs)
    if lists is None:
        return None
    made = []
    for out, *given in zip(call.flat_outs, *lists, strict=True):
        named = {**shared, "value": given.pop()} if name.startswith(NAMED) and given[3:] else shared
        one = edit.call(f"aten.{FORMS[name]}", *given, outputs=(out.name,), **named)
        result = one.outputs
        if not isinstance(result, TensorProxy) or not isinstance(out, TensorProxy):
            return None
        same = result.replace(tags=out.tags, requires_grad=out.requires_grad)
        one = one.replace(outputs=out, tags=call.tags, body=None)
        if same != out or out.device.type != "cpu" or can_fuse(one) is not True:
            return None
        made.append(one)
    return tuple(made)


def _lists(call: BoundSymbol) -> list[list[Any]] | None:
    """The positional arguments, each as a list with an item for each result; None if some differ.

    A number or tensor stands for all results.
    """
    count, found = len(call.flat_outs), []
    for given in call.args:
        items = list(given) if isinstance(given, tuple | list) else [given] * count
        if len(items) != count or not all(isinstance(x, Proxy | int | float) for x in items):
            return None
        found.append(items)
    return found
