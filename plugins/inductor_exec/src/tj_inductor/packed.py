"""Tensors of single numbers, in which regions take them, as places of one tensor.

A tensor takes longer to make than its number: an optimizer has two for each parameter.
"""

from __future__ import annotations

from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Constant,
    NumberProxy,
    PassContext,
    Replacement,
    RuleTable,
    Stage,
    Trace,
    TraceEditor,
    Transform,
)
from tj_core.internal import numbers_first

from tj_inductor.numbers import FLOAT32, FLOAT64, is_unknown

__all__ = ["packing"]

MADE = "aten.scalar_tensor.default"
PACKS = {FLOAT32: "tj.float32s", FLOAT64: "tj.float64s"}
"""The function that makes one tensor of several numbers, by its data type."""


def packing() -> Transform:
    """Make the transform."""
    return Transform("inductor-packed", _packed, after=Stage.SPLIT, falls_back=True)


def _packed(trace: Trace, context: PassContext) -> Trace:
    if trace.stage < Stage.SPLIT or not any(map(_made_as, trace.calls)):
        return trace
    editor = TraceEditor(trace)
    editor.append(*numbers_first(trace.calls))
    trace = editor.done()
    start = next(i for i, call in enumerate(trace.calls) if _made_as(call))
    known = {p.name for p in trace.inputs}.union(
        p.name for call in trace.calls[:start] for p in call.flat_outs
    )
    numbers: dict[Constant, dict[str, NumberProxy]] = {}
    for call in trace.calls[start:]:
        if (dtype := _made_as(call)) and call.args[0].name in known:
            numbers.setdefault(dtype, {})[call.args[0].name] = call.args[0]
    places = {t: {name: i for i, name in enumerate(given)} for t, given in numbers.items()}
    views: dict[Constant, BoundSymbol] = {}

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        dtype = _made_as(call)
        if dtype is None or call.args[0].name not in places.get(dtype, ()):
            return None
        new: list[BoundSymbol] = []
        if dtype not in views:
            pack = edit.call(PACKS[dtype], *numbers[dtype].values()).replace(body=None)
            views[dtype] = edit.call("aten.select.int", pack.outputs, 0, 0)
            new = [pack]
        # The places of one tensor have the same facts, which take long to find for each.
        args = (views[dtype].args[0], 0, places[dtype][call.args[0].name])
        view = views[dtype].replace(args=args, outputs=call.outputs, source=call.source)
        return Replacement((*new, view))

    rules: RuleTable[Any] = RuleTable("inductor-packed")
    rules.set(MADE, rule)
    return context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)


def _made_as(call: BoundSymbol) -> Constant | None:
    """The data type of the tensor that ``call`` makes of a float of each call, if it makes one."""
    if call.symbol.qualname != MADE or not is_unknown(call.args[0]):
        return None
    return next((t for t in PACKS if call.kwargs == (("dtype", t),)), None)
