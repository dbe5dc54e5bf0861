"""The transforms: collectives in buckets and in order before claiming, in exact places after.

What executors make of a program, and so the places at which values are ready, may differ between
ranks: an executor may measure. So the order of a group's collectives is that of the program before
claiming, and later passes keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import PassRecord, Stage, TraceEditor, Transform, can_inline

from tj_distributed.schedule.buckets import bucketed
from tj_distributed.schedule.fences import fenced
from tj_distributed.schedule.placing import Limits, placed
from tj_distributed.schedule.times import Times
from tj_distributed.sequence import starts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tj_core.extend import BoundSymbol, PassContext, Trace

    from tj_distributed.options import Options

__all__ = ["schedule"]

_MB = 1 << 20


def schedule(options: Options) -> tuple[Transform, ...]:
    """Make the transforms for ``options``; none if they want no overlap."""
    if not options.overlap:
        return ()
    in_flight = None if options.in_flight_mb is None else options.in_flight_mb * _MB
    limits = Limits(options.prefetch, in_flight)

    def order(trace: Trace, context: PassContext) -> Trace:
        opened = _opened(trace, context)
        if not any(map(starts, opened.calls)):
            return trace
        from tj_distributed.adapter import has_coalesced  # imports torch.distributed

        calls = bucketed(opened.calls, options.bucket_mb * _MB, has_coalesced, context)
        calls = placed(calls, limits, fixed=False)
        if any(executor.fusion is not None for executor in context.executors):
            calls = _with_fences(calls, trace.outputs, times(options))
        return _edited(opened, calls, context)

    def place(trace: Trace, context: PassContext) -> Trace:
        if not any(map(starts, trace.calls)):
            return trace
        return _edited(trace, placed(trace.calls, limits, fixed=True), context)

    return (
        Transform("order-collectives", order, Stage.SPLIT),
        # Before the announcement, which lists collectives in order.
        Transform("place-collectives", place, Stage.CLAIMED, priority=1),
    )


def times(options: Options) -> Times:
    """The estimates by ``options``."""
    from tj_distributed.adapter import ranks_of  # as `schedule` does

    given = {
        "arithmetic": _scaled(options.tflops, 1e12),
        "memory": _scaled(options.memory_gbs, 1e9),
        "network": _scaled(options.network_gbs, 1e9),
        "latency": _scaled(options.latency_us, 1e-6),
    }
    return Times(ranks_of, given)


def _scaled(number: float | None, unit: float) -> float | None:
    return None if number is None else number * unit


def _with_fences(calls: Sequence[BoundSymbol], outputs: object, times: Times) -> list[BoundSymbol]:
    found = fenced(calls, outputs, times)
    return [
        call.replace(tags=call.tags.add("FENCE")) if i in found else call
        for i, call in enumerate(calls)
    ]


def _edited(trace: Trace, calls: Sequence[BoundSymbol], context: PassContext) -> Trace:
    editor = TraceEditor(trace, context.tags)
    editor.append(*calls)
    return editor.done(PassRecord(context.name, context.plugin))


def _opened(trace: Trace, context: PassContext) -> Trace:
    """``trace`` with calls that start collectives replaced by their parts, as gradients of gathers.

    Calls on tensor subclasses stay whole, and nothing passes them: a redistribution of uneven
    shards has other parts on each rank.
    """
    editor = TraceEditor(trace, context.tags)

    def keep(call: BoundSymbol) -> None:
        if not _has_start(call) or not can_inline(call):
            editor.append(call)
            return
        begin, inlined = len(editor.calls), editor.inlined(call)
        for part in inlined.calls:
            keep(editor.moved(part))
        editor.stands_for(call, begin, inlined.values)
        editor.changed(call, "its parts", context.plugin)

    for call in trace.calls:
        keep(editor.moved(call))
    return editor.done(PassRecord(context.name, context.plugin))


def _has_start(call: BoundSymbol) -> bool:
    """Test for a call of dense parts of which one, but not the call itself, is a start."""
    parts = call.body.calls if call.body is not None else ()
    dense = all(part.symbol.namespace != "tj" for part in parts)  # `tj.flatten`, `tj.unflatten`
    return dense and not starts(call) and any(map(starts, parts))
