"""Dead code elimination that respects effects."""

from __future__ import annotations

import operator

from tj_core.proxy import Proxy
from tj_core.regions import map_programs
from tj_core.symbol import BoundSymbol
from tj_core.trace import PassRecord, Trace
from tj_core.tree import leaves

__all__ = ["dce"]


def dce(trace: Trace) -> Trace:
    """``trace`` without the calls nobody needs; the same object if there are none.

    A call goes if none of its outputs is used and it neither writes an argument nor touches an
    ordered resource (random numbers, a collective, a stream, a side effect). A call with regions
    does what its regions do, and calls inside them go by the same rule.
    """
    calls = _needed(trace)
    return trace if calls is trace.calls else trace.after(PassRecord("dce"), calls=calls)


def _needed(trace: Trace) -> tuple[BoundSymbol, ...]:
    """The calls that somebody needs, regions cleaned too; the same tuple if all are."""
    live = {x.name for x in leaves(trace.outputs) if isinstance(x, Proxy)}
    kept = []
    for call in reversed(trace.calls):
        if call.effects.removable and not any(p.name in live for p in call.flat_outs):
            continue
        kept.append(map_programs(call, _cleaned))
        live.update(p.name for p in call.flat_args)
    calls = tuple(reversed(kept))
    same = len(calls) == len(trace.calls) and all(map(operator.is_, calls, trace.calls))
    return trace.calls if same else calls


def _cleaned(program: Trace) -> Trace:
    calls = _needed(program)
    return program if calls is program.calls else program.replace(calls=calls)
