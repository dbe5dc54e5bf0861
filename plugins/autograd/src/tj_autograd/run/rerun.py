"""A program run once more under PyTorch's autograd, for gradients that are differentiated.

It starts from the inputs as they were and draws the numbers that it drew. Of inputs that the
program itself writes, the call therefore keeps a copy, where their value matters.
"""

from __future__ import annotations

from dataclasses import dataclass

from tj_core.extend import RuleTable, Trace, dce, is_subclass
from tj_torch.extend import OVERWRITTEN

from tj_autograd.joint.replay import resources
from tj_autograd.run.depended import depended_once_more
from tj_autograd.run.reads import Reads

__all__ = ["Rerun", "rerun"]


@dataclass(frozen=True, slots=True)
class Rerun:
    """``trace`` returns the roots. ``depended`` are the values that matter in it, ``copied`` the
    inputs (positions) to keep a copy of; ``devices`` are those whose generators it draws from.
    """

    trace: Trace
    depended: frozenset[str]
    copied: tuple[int, ...]
    devices: tuple[str, ...]


def rerun(
    functional: Trace, depended: frozenset[str], inputs: int, reads: RuleTable[Reads]
) -> Rerun:
    """``functional``, which returns roots alone; gradients depend on the values in ``depended``.

    The first ``inputs`` of its inputs are the program's; nobody writes the memory of others. Of a
    tensor subclass gradients depend on the parts, by other names: its value counts.
    """
    trace = dce(functional)
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
