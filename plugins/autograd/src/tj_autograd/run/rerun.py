"""A program run once more under PyTorch's autograd, for gradients that are differentiated.

It starts from the original inputs and draws the same random numbers. So a call keeps a copy of each
input that the program itself writes and whose value matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_core.extend import RuleTable, Trace, TraceEditor, dce, is_subclass, substituted
from tj_torch.internal import OVERWRITTEN

from tj_autograd.joint.identity import VERSIONED
from tj_autograd.joint.replay import resources
from tj_autograd.run.dependences import depended_once_more

if TYPE_CHECKING:
    from tj_autograd.run.reads import Reads

__all__ = ["Rerun", "rerun"]


@dataclass(frozen=True, slots=True)
class Rerun:
    """``trace`` returns the roots. ``depended`` are the names of values that matter in it,
    ``copied`` the positions of inputs to copy, ``devices`` those whose generators it draws from.
    """

    trace: Trace
    depended: frozenset[str]
    copied: tuple[int, ...]
    devices: tuple[str, ...]


def rerun(
    functional: Trace, depended: frozenset[str], inputs: int, reads: RuleTable[Reads]
) -> Rerun:
    """Make the rerun of ``functional``, which returns roots alone.

    ``depended`` are the names of values that the gradients depend on. The first ``inputs`` of its
    inputs are the program's; nobody writes the memory of the others. An overwritten input that is a
    tensor subclass is always copied: gradients depend on its parts, under other names.
    """
    trace = dce(_without_counts(functional))
    found = depended_once_more(trace, depended, reads)
    drawn = (r for call in trace.calls for r in resources(call.effects))
    return Rerun(
        trace,
        found,
        tuple(
            i
            for i, p in enumerate(functional.inputs[:inputs])
            if OVERWRITTEN.name in p.tags and (p.name in found or is_subclass(p))
        ),
        tuple(r.partition(":")[2] for r in dict.fromkeys(drawn)),
    )


def _without_counts(trace: Trace) -> Trace:
    """``trace`` without calls that set versions, which nobody reads here.

    PyTorch would take such a call for a write to a tensor that an operation has saved, such as the
    result of `relu`, which stands for that of `relu_`.
    """
    editor = TraceEditor(trace)
    for call in trace.calls:
        if call.symbol.qualname == VERSIONED:
            editor.values[call.flat_outs[0].name] = substituted(call.flat_args[0], editor.values)
        else:
            editor.append(editor.moved(call))
    return editor.done()
