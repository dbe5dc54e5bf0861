"""Dead code elimination that respects effects."""

from __future__ import annotations

import functools
import operator

from tj_core.proxy import Proxy, TensorProxy
from tj_core.regions import map_programs
from tj_core.symbol import BoundSymbol
from tj_core.trace import PassRecord, Trace
from tj_core.tree import leaves

__all__ = ["dce"]


def dce(trace: Trace) -> Trace:
    """``trace`` without the calls nobody needs; the same object if there are none.

    A call goes if none of its outputs is used and it neither writes an argument nor touches an
    ordered resource (random numbers, a collective, a stream, a side effect). A call with regions
    does what its regions do, and calls inside them go by the same rule. Once a call has written,
    those stay that autograd may refuse: it does not take every view of memory that was written.
    """
    calls = _needed(trace, written=False)
    return trace if calls is trace.calls else trace.after(PassRecord("dce"), calls=calls)


def _needed(trace: Trace, *, written: bool) -> tuple[BoundSymbol, ...]:
    """The calls that somebody needs, regions cleaned too; the same tuple if all are.

    ``written``: a call before those of ``trace`` has written.
    """
    first = -1 if written else _first_write(trace)
    live = {x.name for x in leaves(trace.outputs) if isinstance(x, Proxy)}
    kept = []
    for place, call in reversed(list(enumerate(trace.calls))):
        removable = call.effects.removable and not (place > first and _may_be_refused(call))
        if removable and not any(p.name in live for p in call.flat_outs):
            continue
        kept.append(map_programs(call, functools.partial(_cleaned, written=place > first)))
        live.update(p.name for p in call.flat_args)
    calls = tuple(reversed(kept))
    same = len(calls) == len(trace.calls) and all(map(operator.is_, calls, trace.calls))
    return trace.calls if same else calls


def _first_write(trace: Trace) -> int:
    """The place of the first call that writes or changes metadata, or of the end."""
    writes = (i for i, c in enumerate(trace.calls) if c.effects.mutates or c.effects.rebinds)
    return next(writes, len(trace.calls))


def _may_be_refused(call: BoundSymbol) -> bool:
    """Whether autograd would look at an argument's version, or at what it is a view of."""
    tracked = any(isinstance(p, TensorProxy) and p.requires_grad for p in call.flat_args)
    return tracked and call.context.get("grad") is not False


def _cleaned(program: Trace, *, written: bool) -> Trace:
    calls = _needed(program, written=written)
    return program if calls is program.calls else program.replace(calls=calls)
