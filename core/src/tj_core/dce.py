"""Dead code elimination that respects effects."""

from __future__ import annotations

from tj_core.proxy import Proxy
from tj_core.trace import PassRecord, Trace
from tj_core.tree import leaves

__all__ = ["dce"]


def dce(trace: Trace) -> Trace:
    """``trace`` without the calls nobody needs; the same object if there are none.

    A call goes if none of its outputs is used and it neither writes an argument nor touches an
    ordered resource (random numbers, a collective, a stream, a side effect).
    """
    live = {x.name for x in leaves(trace.outputs) if isinstance(x, Proxy)}
    kept = []
    for call in reversed(trace.calls):
        if call.effects.removable and not any(p.name in live for p in call.flat_outs):
            continue
        kept.append(call)
        live.update(p.name for p in call.flat_args)
    if len(kept) == len(trace.calls):
        return trace
    return trace.after(PassRecord("dce"), calls=tuple(reversed(kept)))
