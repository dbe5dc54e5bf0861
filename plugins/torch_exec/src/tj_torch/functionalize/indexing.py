"""Find programs whose only run-time errors are indices out of bounds."""

from __future__ import annotations

from tj_core.extend import BoundSymbol, TensorProxy, Trace

from tj_torch.ops.facts.refusals import INDICES

__all__ = ["may_refuse_an_index"]


def may_refuse_an_index(trace: Trace) -> bool:
    """Test for a call on the CPU that may raise for an index, in a trace without side effects.

    A program with side effects must not run twice. On a GPU, errors come later or end the process.
    """
    found = False
    for call in trace.calls:
        if "side_effect" in call.effects.ordered:
            return False
        found = found or _indexes(call)
    return found


def _indexes(call: BoundSymbol) -> bool:
    tensors = [p for p in call.flat_args if isinstance(p, TensorProxy)]
    indices = [p for p in tensors if p.dtype.name in INDICES and p.device.type == "cpu"]
    return bool(indices) and len(tensors) > 1
