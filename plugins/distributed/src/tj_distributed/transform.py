"""The transform: programs say which collectives they run, and can leave a wait.

``distributed.begin(group, sequence)`` comes first, once for each group, with the reason of the
program if it was compiled again; ``distributed.wait(x)`` before each of PyTorch's waits, which has
nothing to wait for then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import (
    BoundSymbol,
    Effects,
    PassRecord,
    Stage,
    TraceEditor,
    Transform,
)

from tj_distributed.groups import BEGIN, NAMESPACE, WAIT
from tj_distributed.sequence import TORCH_WAIT, collectives, starts, to_text

if TYPE_CHECKING:
    from typing import Any

    from tj_core.extend import PassContext, Symbol, TagSet, Trace

__all__ = ["announce"]


def announce() -> Transform:
    """Make the transform."""
    return Transform("announce", _apply, Stage.CLAIMED)


def _apply(trace: Trace, context: PassContext) -> Trace:
    first = next(filter(starts, trace.calls), None)
    if first is None:
        return trace
    sequence = collectives(trace)
    editor, of_backward = TraceEditor(trace, context.tags), first.tags
    for group in dict.fromkeys(c.group for c in sequence):
        own = tuple(c for c in sequence if c.group == group)
        args = (group, to_text(own), *filter(None, [context.reason]))
        call = _call(trace, BEGIN, args, f"collective:{group}", of_backward)
        editor.append(call)
        editor.changed(call, f"{len(own)} collectives", context.plugin)
    for call in trace.calls:
        if call.symbol.qualname == TORCH_WAIT:
            wait = _call(trace, WAIT, call.args, "wait", call.tags)
            editor.append(wait.replace(source=call.source))
        editor.append(call)
    return editor.done(PassRecord(context.name, context.plugin))


def _call(
    trace: Trace, symbol: Symbol, args: tuple[Any, ...], resource: str, tags: TagSet
) -> BoundSymbol:
    effects = Effects(ordered=(resource,))
    return BoundSymbol(
        symbol, args, effects=effects, context=trace.context, tags=tags, executor=NAMESPACE
    )
