"""Operators on lists of tensors, as operators on each: a region fuses them across lists.

On CPUs PyTorch computes them tensor by tensor, by the operators in `FORMS`, and makes a list of new
values for each. Apart, they are written in place, and no value between two lists is in memory. What
becomes of one tensor stands together, so that these parts repeat each other, and one is compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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

from tj_inductor.numbers import Made, UnfitError, is_unknown, tensors_of
from tj_inductor.opening import opened

__all__ = ["separating"]

MOST = 4096
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
    trace = opened(trace, context, _holds_lists)
    made_of: set[str] = set()
    known = tensors_of(trace)

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        made = _apart(call, edit, known)
        if made is None or len(made_of) + len(made.calls) > MOST:
            return None
        made_of.update(one.label for one in made.calls)
        return Replacement((*made.tensors.values(), *made.calls))

    rules: RuleTable[Any] = RuleTable("inductor-lists")
    for name in FORMS:
        rules.set(f"{PREFIX}{name}", rule)
    trace = context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)
    return _in_chains(trace, made_of, context) if made_of else trace


def _in_chains(trace: Trace, moved: Collection[str], context: PassContext) -> Trace:
    """``trace`` with neighbours among the calls ``moved`` in chains, in which one reads the other.

    No two calls of different chains depend on each other.
    """
    editor = TraceEditor(trace, context.tags)
    together: dict[str, BoundSymbol] = {}

    def put(call: BoundSymbol) -> None:
        editor.append(editor.moved(call))

    for call in trace.calls:
        if call.label in moved:
            together[call.label] = call
        elif call.effects.removable and together.keys().isdisjoint(p.name for p in call.flat_args):
            put(call)  # before its neighbours, so that these stay neighbours
        else:
            for one in (*_by_chain(together.values()), call):
                put(one)
            together.clear()
    for one in _by_chain(together.values()):
        put(one)
    return editor.done(PassRecord(context.name, context.plugin))


def _by_chain(calls: Iterable[BoundSymbol]) -> list[BoundSymbol]:
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


def _apart(call: BoundSymbol, edit: CallEditor, known: Mapping[str, TensorProxy]) -> Made | None:
    """The calls on each tensor; None if one cannot be fused, or has another result.

    ``known`` are the tensors that numbers are read from.
    """
    lists = _lists(call)
    if lists is None:
        return None
    name = FORMS[call.symbol.qualname.removeprefix(PREFIX)]
    if name == "lerp.Scalar" and any(is_unknown(x) for numbers in lists for x in numbers):
        name = "lerp.Tensor"  # the other takes no tensor
    made = Made(call, edit, name, known)
    try:
        for out, *given in zip(call.flat_outs, *lists, strict=True):
            named = dict(call.kwargs)
            if name.startswith(NAMED) and given[3:]:
                named["value"] = given.pop()
            made.add(out, given, named)
    except UnfitError:
        return None
    return made


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
