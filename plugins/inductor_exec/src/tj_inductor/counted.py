"""New values of arguments that a program reads numbers from: copied to the arguments by a region.

An optimizer counts its steps in tensors, and numbers that it reads from the counts may be refused.
A region that makes a count runs before, and must not write it yet: the old value would be lost.
"""

from __future__ import annotations

from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    NumberProxy,
    PassContext,
    Proxy,
    Replacement,
    RuleTable,
    Stage,
    TensorProxy,
    Trace,
    TraceEditor,
    Transform,
    leaves,
    map_tree,
)
from tj_core.internal import NEW_VALUE_OF, same_metadata

from tj_inductor.adapter.features import is_lost
from tj_inductor.adapter.names import IN_PLACE

__all__ = ["counting"]


def counting() -> Transform:
    """Make the transform."""
    return Transform("inductor-counted", _counted, after=Stage.SPLIT, falls_back=True)


def _counted(trace: Trace, context: PassContext) -> Trace:
    inputs = {p.name: p for p in trace.inputs}
    read = {
        p.name
        for call in trace.calls
        if call.flat_outs and all(isinstance(p, NumberProxy) for p in call.flat_outs)
        for p in call.flat_args
    }
    returned = (p for p in leaves(trace.outputs) if isinstance(p, Proxy))
    outputs = [p for p in returned if p.name in read and NEW_VALUE_OF in p.tags]
    old = {p.name: inputs.get(str(p.tags[NEW_VALUE_OF])) for p in outputs}
    if trace.stage < Stage.SPLIT or is_lost(IN_PLACE) or not old:
        return trace
    copies: dict[str, Proxy] = {}

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        made: list[BoundSymbol] = []
        for p in call.flat_outs:
            before = old.get(p.name)
            if isinstance(before, TensorProxy) and _is_count(before) and same_metadata(before, p):
                copy = edit.call("aten.copy.default", before, p).replace(body=None)
                (out,) = copy.flat_outs
                copies[p.name] = out.replace(tags=p.tags)
                made.append(copy.replace(outputs=copies[p.name]))
        return Replacement((call, *made)) if made else None

    rules: RuleTable[Any] = RuleTable("inductor-counted")
    rules.set("*", rule)
    editor = TraceEditor(context.rewrite(trace, rules, into_bodies=False, into_subprograms=False))
    editor.append(*editor.trace.calls)
    outputs_now = map_tree(lambda p: copies.get(p.name, p), editor.trace.outputs, Proxy)
    return editor.done(outputs=outputs_now)


def _is_count(p: TensorProxy) -> bool:
    return p.device.type == "cpu" and not p.shape
