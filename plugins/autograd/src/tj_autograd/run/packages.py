"""Forward and backward in a package, from what is kept of them on disk.

A package has one backward program, for tangents of the default layout. What needs more than that,
or to run the forward again, is declined.
"""

from __future__ import annotations

from typing import Any

from tj_core.extend import Decline, Proxy, Trace, TrainingParts, is_subclass, leaves
from tj_torch.internal import is_sized

from tj_autograd.joint.functions import has_own_backward
from tj_autograd.joint.replay import draws_again

__all__ = ["training_parts"]


def training_parts(kept: Any) -> TrainingParts | Decline:
    """The parts of a payload of `tj_autograd.run.assembly.Splitting.kept`."""
    if kept is None:
        return Decline("nothing that it returns needs a gradient")
    forward, outputs, roots, rest, saved, parts = kept["halves"]
    functional: Trace = kept["functional"]
    if len(parts) != 1 or kept["order"]:
        return Decline("several of its results need gradients: return the loss alone")
    ((backward, takes, tangents, gradients),) = parts
    if draws_again(backward):
        return Decline("its backward draws the random numbers of the forward again")
    own = next((call for call in functional.walk() if has_own_backward(call)), None)
    if own is not None:
        return Decline("a part of it has a backward that the user wrote", own.source)
    values = (*forward.inputs, *roots, *rest, *saved, *tangents)
    if any(map(is_subclass, values)):
        return Decline("it computes with tensor subclasses")
    if any(map(is_sized, values)):
        return Decline("sizes are symbols")
    names = [p.name for p in forward.inputs]
    return TrainingParts(
        "backward",
        tuple(p if isinstance(p, Proxy) else None for p in leaves(outputs)),
        roots,
        rest,
        saved,
        tuple([p.name for p in saved].index(p.name) for p in takes),
        tangents,
        tuple(names.index(name) for name in gradients),
    )
