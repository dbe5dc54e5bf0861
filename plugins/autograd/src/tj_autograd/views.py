"""Views that a program returns: JOINT works on what they are views of.

A tensor that is a view in PyTorch, but of memory nobody else gets to see, is returned as a tensor
of its own. A view of an input, or of something else that is returned, is made again outside of the
boundary to autograd, by the operations that made it: so that it is a view for PyTorch, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tj_core.proxy import Proxy, TensorProxy
from tj_core.records import Decline
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace
from tj_core.tree import leaves

__all__ = ["Closed", "bases_of", "closed", "root_of"]


@dataclass(frozen=True, slots=True)
class Closed:
    """A program that returns no views, and what makes the user's outputs from what it returns.

    ``alone`` are the names of what it returns that PyTorch takes for views, though they are of
    memory that nobody else sees. ``outside`` takes the inputs and what ``trace`` returns; None:
    that is what the user's program returns.
    """

    trace: Trace
    alone: frozenset[str]
    outside: Trace | None = None


def closed(trace: Trace) -> Closed | Decline:
    """``trace`` without views among its outputs.

    Declined where these are not made by calls that can run again.
    """
    maker = {p.name: call for call in trace.calls for p in call.flat_outs}
    bases = bases_of(trace.calls)
    inputs = {p.name for p in trace.inputs}
    returned = {p.name: p for p in leaves(trace.outputs) if isinstance(p, TensorProxy)}
    returned = {name: p for name, p in returned.items() if name not in inputs}
    roots = {name: root_of(name, bases) for name in returned}
    seen = Counter(roots.values())
    single = {n for n, r in roots.items() if seen[r] == 1 and r not in inputs and n in bases}
    again = [n for n, r in roots.items() if n != r and n not in single]
    alone = {n for n in single if not returned[n].flags}  # a conjugate is a view, or a copy
    if not again:
        return Closed(trace, frozenset(alone))
    wanted = _chain(again, bases, maker)
    calls = tuple(call for call in trace.calls if id(call) in wanted)
    for call in calls:
        if not _repeatable(call):
            return Decline(f"a view, made by {call.symbol}, is returned", call.source)
    return Closed(*_apart(trace, calls, inputs, frozenset(alone)))


def bases_of(calls: Iterable[BoundSymbol]) -> dict[str, str]:
    """For each value that is a view, the value it is a view of; itself for a hidden one."""
    found: dict[str, str] = {}
    for call in calls:
        for a in call.effects.aliases:
            name = call.flat_outs[a.output].name
            values = {"arg": call.flat_args, "out": call.flat_outs}.get(a.kind)
            found.setdefault(name, name if values is None else values[a.index].name)
    return found


def root_of(name: str, bases: dict[str, str]) -> str:
    """The value whose memory ``name`` is on."""
    while bases.get(name, name) != name:
        name = bases[name]
    return name


def _chain(names: Iterable[str], bases: dict[str, str], maker: dict[str, BoundSymbol]) -> set[int]:
    """The ids of the calls from the roots to the views called ``names``."""
    wanted = set()
    for name in names:
        while bases.get(name, name) != name:
            wanted.add(id(maker[name]))
            name = bases[name]
    return wanted


def _repeatable(call: BoundSymbol) -> bool:
    """Whether ``call`` does nothing but make views of its arguments."""
    views = {a.output for a in call.effects.aliases if a.kind == "arg"}
    return len(views) == len(call.flat_outs) and call.effects.removable


def _apart(
    trace: Trace, calls: tuple[BoundSymbol, ...], inputs: set[str], alone: frozenset[str]
) -> tuple[Trace, frozenset[str], Trace]:
    """The program without the last ``calls``, and these with what they read of it."""
    made = {p.name for call in calls for p in call.flat_outs}
    read = (*(p for call in calls for p in call.flat_args), *leaves(trace.outputs))
    values = {p.name: p for p in read if isinstance(p, Proxy)}
    left = tuple(p for name, p in values.items() if name not in inputs | made)
    ran = tuple(call.replace(executor="torch") for call in calls)
    outside = trace.replace(
        inputs=(*trace.inputs, *left), calls=ran, name="views", history=trace.history
    )
    return trace.replace(outputs=left), alone, outside
