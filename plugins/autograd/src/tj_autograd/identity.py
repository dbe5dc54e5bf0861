"""One name for each tensor: what an operation returns as it was given is called as before."""

from __future__ import annotations

from tj_core.bodies import with_args
from tj_core.proxy import Proxy
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace
from tj_core.tree import map_tree

__all__ = ["one_name_each"]


def one_name_each(trace: Trace) -> Trace:
    """``trace`` where nobody reads an output that is an argument (``x.to(x.dtype)``), or another.

    PyTorch adds up the gradients of a tensor, whatever its names, in the order in which they come.
    """
    first: dict[str, Proxy] = {}

    def current(p: Proxy) -> Proxy:
        return first.get(p.name, p)

    calls = []
    for call in trace.calls:
        made = with_args(call, current) if first else call
        calls.append(made)
        first.update(_identical(made))
    if not first:
        return trace
    outputs = map_tree(current, trace.outputs, Proxy)
    return trace.replace(calls=tuple(calls), outputs=outputs)


def _identical(call: BoundSymbol) -> dict[str, Proxy]:
    """The outputs of ``call`` that are other values, by name, and these."""
    if call.effects.mutates or call.effects.rebinds or call.symbol.qualname == "tj.versioned":
        return {}  # that one is there for what it does to its argument
    values = {"arg": call.flat_args, "out": call.flat_outs}
    found: dict[str, Proxy] = {}
    for alias in call.effects.aliases:
        if alias.identical:
            given = values[alias.kind][alias.index]
            given = found.get(given.name, given)
            name = call.flat_outs[alias.output].name
            if name != given.name:
                found[name] = given
    return found
