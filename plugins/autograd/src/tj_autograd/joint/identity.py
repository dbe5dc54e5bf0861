"""One name for each tensor: an output that is an argument itself takes the argument's name."""

from __future__ import annotations

from tj_core.extend import BoundSymbol, Proxy, Trace, TraceEditor
from tj_core.internal import same_objects

__all__ = ["VERSIONED", "one_name_each"]

VERSIONED = "tj.versioned"
"""Name of the call that sets the version of a value."""


def one_name_each(trace: Trace) -> Trace:
    """Rename each output that is an argument (``x.to(x.dtype)``) or another output to that value's
    name.

    PyTorch adds up the gradients of a tensor in the order in which they come, whatever its names.
    After a call that counts up the version of a value, the value is read by the name of the call's
    result.
    """
    editor = TraceEditor(trace)
    for call in trace.calls:
        made = editor.moved(call)
        editor.append(made)
        if made.symbol.qualname == VERSIONED:
            counted, later = made.flat_args[0], made.flat_outs[0]
            known = {n for n, p in editor.values.items() if p.name == counted.name}
            # Also the other names of the value, which an earlier call has given it.
            editor.values.update(dict.fromkeys((*known, counted.name), later))
        editor.values.update(_identical(made))
    return editor.done()


def _identical(call: BoundSymbol) -> dict[str, Proxy]:
    """Map the names of outputs that are another value of ``call`` to that value."""
    if call.effects.mutates or call.effects.rebinds or call.symbol.qualname == VERSIONED:
        return {}  # the call is kept for its effect on the argument
    return {name: p for name, p in same_objects(call).items() if name != p.name}
