"""Tensors of single numbers, in which regions take them, as places of one tensor.

A tensor takes longer to make than its number: an optimizer has two for each parameter.
"""

from __future__ import annotations

from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    PassContext,
    Replacement,
    RuleTable,
    Stage,
    Trace,
    TraceEditor,
    Transform,
)
from tj_core.internal import numbers_first

from tj_inductor.numbers import FLOAT64, is_unknown

__all__ = ["packing"]

MADE = "aten.scalar_tensor.default"


def packing() -> Transform:
    """Make the transform."""
    return Transform("inductor-packed", _packed, after=Stage.SPLIT, falls_back=True)


def _packed(trace: Trace, context: PassContext) -> Trace:
    if trace.stage < Stage.SPLIT or not any(map(_is_made, trace.calls)):
        return trace
    editor = TraceEditor(trace)
    editor.append(*numbers_first(trace.calls))
    trace = editor.done()
    start = next(i for i, call in enumerate(trace.calls) if _is_made(call))
    known = {p.name for p in trace.inputs}.union(
        p.name for call in trace.calls[:start] for p in call.flat_outs
    )
    made = [call for call in trace.calls[start:] if _is_made(call) and call.args[0].name in known]
    numbers = {call.args[0].name: call.args[0] for call in made}
    places = {name: place for place, name in enumerate(numbers)}
    views: list[BoundSymbol] = []

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        if not (_is_made(call) and call.args[0].name in places):
            return None
        new: list[BoundSymbol] = []
        if not views:
            pack = edit.call("tj.float64s", *numbers.values()).replace(body=None)
            views.append(edit.call("aten.select.int", pack.outputs, 0, 0))
            new = [pack]
        # The places of one tensor have the same facts, which take long to find for each.
        args = (views[0].args[0], 0, places[call.args[0].name])
        view = views[0].replace(args=args, outputs=call.outputs, source=call.source)
        return Replacement((*new, view))

    rules: RuleTable[Any] = RuleTable("inductor-packed")
    rules.set(MADE, rule)
    return context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)


def _is_made(call: BoundSymbol) -> bool:
    """Test for a call that makes a tensor of a float which is known in each call only."""
    return (
        call.symbol.qualname == MADE
        and is_unknown(call.args[0])
        and call.kwargs == (("dtype", FLOAT64),)
    )
