"""Programs that write parameters in place and take no gradients, such as optimizer steps.

In functional form, each parameter and each of an optimizer's averages would be a new tensor that is
copied back. On a CPU this takes three to ten times the time of the step, and twice the memory. No
gradient needs that form, and executors that fuse gain little from a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import Decline, requires_grad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tj_core.extend import BoundSymbol, Proxy, Trace

__all__ = ["writes_parameters"]


def writes_parameters(trace: Trace) -> Decline | None:
    """Decline for a trace that writes parameters, and computes nothing that needs a gradient."""
    parameters = {p.name for p in trace.inputs if requires_grad(p)}
    found: BoundSymbol | None = None
    for call in trace.calls:
        if any(map(requires_grad, _made(call))):
            return None
        if any(call.flat_args[i].name in parameters for i in call.effects.mutates):
            found = found or call
    if found is None:
        return None
    return Decline("it writes parameters, and takes no gradients", found.source)


def _made(call: BoundSymbol) -> Iterator[Proxy]:
    """The outputs of ``call``, but for arguments that it returns and takes no gradients of."""
    given = {a.output for a in call.effects.aliases if a.kind == "arg" and a.identical}
    given = given if call.context.get("grad") is False else set()
    return (p for i, p in enumerate(call.flat_outs) if i not in given)
