"""Forward and backwards in a package, from what is kept of them on disk.

A package has one backward program for each node of autograd, for tangents of the default layout.
What needs more than that, or to run the forward again, is declined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tj_core.extend import (
    Decline,
    NumberProxy,
    Proxy,
    Trace,
    TrainingNode,
    TrainingParts,
    is_subclass,
    leaves,
    symbols_in,
)

from tj_autograd.joint.functions import has_own_backward
from tj_autograd.joint.replay import draws_again
from tj_autograd.joint.segments import is_returned_view

__all__ = ["training_parts"]


def training_parts(kept: Any) -> TrainingParts | Decline:
    """The parts of a payload of `tj_autograd.run.assembly.Splitting.kept`."""
    if kept is None:
        return Decline("nothing that it returns needs a gradient")
    forward, outputs, roots, rest, saved, parts = kept["halves"]
    functional: Trace = kept["functional"]
    if any(draws_again(backward) for backward, *_ in parts):
        return Decline("its backward draws the random numbers of the forward again")
    own = next((call for call in functional.walk() if has_own_backward(call)), None)
    if own is not None:
        return Decline("a part of it has a backward that the user wrote", own.source)
    view = next(filter(is_returned_view, functional.calls), None) if len(parts) > 1 else None
    if view is not None:
        return Decline("one of several results is a view, which autograd has to make", view.source)
    nodes = tuple(_nodes(forward, roots, saved, parts))
    tangents = [p for node in nodes for p in node.tangents]
    if any(map(is_subclass, (*forward.inputs, *roots, *rest, *saved, *tangents))):
        return Decline("it computes with tensor subclasses")
    known = {p.expr for p in forward.inputs if isinstance(p, NumberProxy)}
    if unknown := [name for name in symbols_in(tangents) if name not in known]:
        return Decline(f"the sizes of its results depend on {unknown[0]}, which is no input")
    found = tuple(p if isinstance(p, Proxy) else None for p in leaves(outputs))
    return TrainingParts(found, roots, rest, saved, nodes)


def _nodes(forward: Trace, roots: Any, saved: Any, parts: Any) -> Iterator[TrainingNode]:
    """The node of each of ``parts``; ``roots`` are those of the first one, then of the next."""
    inputs, places = [p.name for p in forward.inputs], {p.name: i for i, p in enumerate(saved)}
    whole, begin = len(parts) == 1, 0
    for index, (_, takes, tangents, gradients) in enumerate(parts):
        end = begin + len(tangents)
        # With one node, gradients are returned at the places of inputs; else under their names,
        # which have a number where a value has several.
        pairs = ((inputs.index(n) if whole else n, n.partition(".")[0]) for n in gradients)
        yield TrainingNode(
            f"backward.{index}" if index else "backward",
            roots[begin:end],
            tuple(places[p.name] for p in takes),
            tangents,
            tuple(pairs),
        )
        begin = end
