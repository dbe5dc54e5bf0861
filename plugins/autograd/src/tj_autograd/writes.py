"""Writes that have nothing to do with gradients, which stay in the forward where they are.

Counters, masks and positions are often filled in place. Where nothing that shares the memory needs
a gradient or belongs to the caller, and nothing that is differentiated has read it before, the
forward runs the write as it stands; the backward reads what is there at the end, as in eager, and
neither makes such memory again nor computes anything from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tj_core.proxy import Proxy, TensorProxy
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace

from tj_autograd.joint import carries
from tj_autograd.views import bases_of, root_of

__all__ = ["harmful_write", "written"]


def written(calls: Sequence[BoundSymbol]) -> frozenset[str]:
    """The names of all values on memory that one of ``calls`` writes."""
    bases = bases_of(calls)
    roots = {root_of(p.name, bases) for call in calls for p in _targets(call)}
    names = {p.name for call in calls for p in (*call.flat_args, *call.flat_outs)} if roots else ()
    return frozenset(name for name in names if root_of(name, bases) in roots)


def harmful_write(trace: Trace) -> BoundSymbol | None:
    """The first call whose write must not stay as it is; None if all may."""
    names = written(trace.calls)
    if not names:
        return None
    again = any("RECOMPUTE" in call.tags for call in trace.calls)
    inputs = {p.name for p in trace.inputs}
    shared = names & inputs or names & {p.name for p in _differentiable(trace.calls)}
    bases = bases_of(trace.calls)
    read: set[str] = set()
    for call in trace.calls:
        targets = {root_of(p.name, bases) for p in _targets(call)}
        if targets and (again or shared or carries(call) or not targets.isdisjoint(read)):
            return call
        if carries(call):
            read |= {root_of(p.name, bases) for p in call.flat_args}
    return None


def _targets(call: BoundSymbol) -> list[Proxy]:
    return [call.flat_args[i] for i in call.effects.mutates]


def _differentiable(calls: Iterable[BoundSymbol]) -> Iterable[Proxy]:
    values = (p for call in calls for p in (*call.flat_args, *call.flat_outs))
    return (p for p in values if isinstance(p, TensorProxy) and p.requires_grad)
