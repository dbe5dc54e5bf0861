"""The transform: a redistribution of what a redistribution returns is one.

A layer that ends with a value on all processes, before one that takes its shards, runs an
all-reduce, of which each process throws most away. From the partial sums to the shards a
reduce-scatter leads, with a part of the messages.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    PassRecord,
    Proxy,
    Replacement,
    RuleTable,
    Stage,
    TraceEditor,
    Transform,
    leaves,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tj_core.extend import BoundSymbol, CallEditor, PassContext, Trace

__all__ = ["redistributions"]

_METHOD = "tj.method"
_FUNCTION = "torch.distributed.tensor.DTensor.redistribute"
_PLAIN = {"placements", "async_op", "device_mesh"}
"""Arguments of a redistribution that converts nothing."""


def redistributions() -> Transform:
    """Make the transform; it comes before gradients, and where nothing is written any more."""
    return Transform("merge_redistributions", _apply, Stage.FUNCTIONAL)


def _apply(trace: Trace, context: PassContext) -> Trace:
    steps = _steps(trace)
    if not steps:
        return trace

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        if call.label not in steps:
            return None
        names = tuple(p.name for p in call.flat_outs)
        source = _source(steps, call)
        return Replacement((edit.call(_FUNCTION, source, outputs=names, **dict(call.kwargs)),))

    rules: RuleTable[Any] = RuleTable("redistributions")
    rules.set(_METHOD, rule)
    merged = context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)
    # Nobody reads what the earlier ones return, but collectives stay without being told.
    editor = TraceEditor(merged, context.tags)
    earlier = {call.label for call in steps.values()}
    editor.append(*(call for call in merged.calls if call.label not in earlier))
    return editor.done(PassRecord(context.name, context.plugin))


def _steps(trace: Trace) -> dict[str, BoundSymbol]:
    """Map the label of each redistribution that can be merged to the one before it.

    The value between the two is read by nobody else.
    """
    makers: dict[str, BoundSymbol] = {}
    readers: Counter[str] = Counter(p.name for call in trace.calls for p in call.flat_args)
    readers.update(p.name for p in leaves(trace.outputs) if isinstance(p, Proxy))
    found = {}
    for call in filter(_is_plain, trace.calls):
        before = makers.get(call.args[1].name)
        if before is not None and readers[call.args[1].name] == 1:
            found[call.label] = before
        makers.update((p.name, call) for p in call.flat_outs)
    return found


def _source(steps: Mapping[str, BoundSymbol], call: BoundSymbol) -> Any:
    """The value that the first of a row of redistributions takes."""
    while call.label in steps:
        call = steps[call.label]
    return call.args[1]


def _is_plain(call: BoundSymbol) -> bool:
    """True for a ``DTensor.redistribute`` on one mesh, which converts and writes nothing."""
    if call.symbol.qualname != _METHOD or call.args[0] != "redistribute" or len(call.args) != 2:
        return False
    given = dict(call.kwargs)
    plain = isinstance(call.args[1], Proxy) and given.keys() <= _PLAIN
    plain = plain and given.get("device_mesh") is None
    return plain and not (call.effects.mutates or call.effects.rebinds)
