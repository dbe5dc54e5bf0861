"""Dead code elimination that respects effects."""

from __future__ import annotations

import functools

from tj_core.analysis.liveness import live_calls
from tj_core.edit.editor import TraceEditor, recorded
from tj_core.edit.subprograms import map_programs
from tj_core.ir.trace import BoundSymbol, PassRecord, Trace

__all__ = ["dce"]


def dce(trace: Trace) -> Trace:
    """``trace`` without dead calls; the same object if there are none.

    A call is dead if none of its outputs is used and it neither writes an argument nor touches an
    ordered resource (random numbers, a collective, a stream, a side effect). A call with
    subprograms has their effects, and the calls inside follow the same rule. After the first
    mutation, calls are kept that may raise because of it (`Dialect.checks_writes`).
    """
    cleaned = _cleaned(trace, mutated=False)
    return trace if cleaned is trace else recorded(cleaned, PassRecord("dce"))


def _cleaned(trace: Trace, *, mutated: bool) -> Trace:
    """The program without dead calls, in its subprograms too; the same object if there are none.

    ``mutated``: a call before ``trace`` has written memory.
    """
    first = -1 if mutated else _first_write(trace)

    def kept(place: int, call: BoundSymbol) -> bool:
        return not call.effects.removable or (place > first and checks(call))

    checks = trace.language.checks_writes
    editor = TraceEditor(trace)
    for place in live_calls(trace.calls, trace.outputs, kept):
        clean = functools.partial(_cleaned, mutated=place > first)
        editor.append(map_programs(trace.calls[place], clean))
    return editor.done()


def _first_write(trace: Trace) -> int:
    """The index of the first call that writes memory or changes metadata, else of the end."""
    writes = (i for i, c in enumerate(trace.calls) if c.effects.mutates or c.effects.rebinds)
    return next(writes, len(trace.calls))
