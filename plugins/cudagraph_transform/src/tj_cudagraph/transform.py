"""The transform: segments of a claimed program become calls with a region.

``cudagraph.run(segment, (weight,), (x,))`` runs the region; values in the first tuple keep their
address from call to call. A view that is used after a segment is made again outside, from a result
or an input of the segment: a view of the graph's own memory is never returned.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_core.extend import (
    NO_TAGS,
    BoundSymbol,
    PassContext,
    PassRecord,
    Proxy,
    Stage,
    Symbol,
    TagSet,
    Trace,
    TraceEditor,
    Transform,
    free_values,
    live_calls,
    makes_views,
    value_names,
)

from tj_cudagraph.plan import Limits, segments
from tj_cudagraph.waits import WAITS

if TYPE_CHECKING:
    from tj_cudagraph.options import Options

__all__ = ["EXECUTOR", "RUN", "graph_segments"]

EXECUTOR = "cudagraph"
RUN = Symbol(EXECUTOR, "run")
STATIC = "STATIC_MEMORY_LOCATION"
LAST = -100
"""Priority that puts the transform last in its stage: the others see the calls themselves."""


def graph_segments(options: Options, kind: str) -> Transform:
    """Make the transform for devices of ``kind``."""
    apply = functools.partial(_apply, options=options, kind=kind)
    return Transform(
        "cudagraph", apply, Stage.CLAIMED, priority=LAST, falls_back=True, reads=frozenset({STATIC})
    )


def _apply(trace: Trace, context: PassContext, *, options: Options, kind: str) -> Trace:
    if options.check == 3:  # values of kernels are compared in every run, on the host
        return trace
    limits = Limits(kind, context.tables[WAITS])
    refused = [limits.refusal(call) for call in trace.calls]
    found = tuple(segments(trace.calls, refused, options.minimum))
    editor, kept = TraceEditor(trace, context.tags), 0
    for segment in found:
        parts = _parts(trace, segment.start, segment.stop)
        # Of the first input `Segments` learns on which device and stream it runs.
        if not parts.returned or not free_values(parts.inside):
            continue
        _keep(editor, trace, refused, range(kept, segment.start))
        call = _call(editor, parts)
        editor.append(call, *parts.views)
        editor.changed(call, f"{len(parts.inside)} calls as a graph", context.plugin)
        kept = segment.stop
    if not kept:
        return trace
    _keep(editor, trace, refused, range(kept, len(trace.calls)))
    return editor.done(PassRecord(context.name, context.plugin))


def _keep(editor: TraceEditor, trace: Trace, refused: Sequence[str | None], places: range) -> None:
    """Keep the calls at ``places``, and record the reasons of those that no graph can hold."""
    for i in places:
        editor.append(trace.calls[i])
        if (reason := refused[i]) is not None:
            editor.changed(trace.calls[i], f"in no graph: {reason}", EXECUTOR)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The calls ``inside`` a graph, the values that it returns, and the views made after it."""

    inside: tuple[BoundSymbol, ...]
    returned: tuple[Proxy, ...]
    views: tuple[BoundSymbol, ...]


def _parts(trace: Trace, start: int, stop: int) -> _Parts:
    """Sort the calls from ``start`` to before ``stop`` into the parts of a segment."""
    calls = trace.calls[start:stop]
    needed = value_names(trace.outputs)
    needed.update(p.name for call in trace.calls[stop:] for p in call.flat_args)
    views = []
    for call in reversed(calls):
        if makes_views(call) and not needed.isdisjoint(p.name for p in call.defined()):
            views.append(call)
            needed.update(p.name for p in call.flat_args)
    computed = (p for call in calls if not makes_views(call) for p in call.defined())
    returned = tuple(p for p in computed if p.name in needed)
    live = live_calls(calls, returned)
    return _Parts(tuple(calls[i] for i in live), returned, tuple(reversed(views)))


def _call(editor: TraceEditor, parts: _Parts) -> BoundSymbol:
    """Make the call that runs a segment."""
    inputs = free_values(parts.inside)
    static = tuple(p for p in inputs if STATIC in p.tags)
    copied = tuple(p for p in inputs if STATIC not in p.tags)
    region = editor.part(editor.fresh("segment"), (*static, *copied), parts.inside, parts.returned)
    first = parts.inside[0]
    backward = any("BACKWARD" in call.tags for call in parts.inside)
    return BoundSymbol(
        RUN,
        (region, static, copied),
        outputs=parts.returned,
        context=editor.trace.context,
        tags=TagSet(["BACKWARD"]) if backward else NO_TAGS,
        source=first.source,
        parent=first.parent,
        executor=EXECUTOR,
    )
