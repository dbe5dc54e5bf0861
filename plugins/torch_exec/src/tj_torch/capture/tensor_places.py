"""Places of tensors that a captured graph holds.

Programs read them from the graph at each call: an optimizer that is freed removes its state from
the graph of its step, and a program with references of its own would keep that state alive.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Held", "held_at", "held_by"]


@dataclass(frozen=True, slots=True)
class Held:
    """Place of a tensor: a dict of attributes, parameters or buffers, and its key."""

    owner: Mapping[str, Any]
    name: str


def held_at(graph: torch.fx.GraphModule, path: str) -> Held:
    """Place of the tensor at ``path``, such as ``block.weight``, of ``graph``."""
    *before, name = path.split(".")
    owner: Any = graph
    for part in before:
        owner = getattr(owner, part)
    kinds = (vars(owner), vars(owner).get("_parameters", {}), vars(owner).get("_buffers", {}))
    return next(Held(kind, name) for kind in kinds if name in kind)


def held_by(places: Sequence[Held]) -> Callable[[], Iterable[Any]]:
    """A function that returns the tensors that are at ``places`` now."""
    reads = []
    for _, same in itertools.groupby(places, lambda place: id(place.owner)):
        first, *others = same
        # Of one name, a getter would return no tuple.
        names = (first.name, *(place.name for place in others))
        pick = operator.itemgetter(*names) if others else _only(first.name)
        reads.append((pick, first.owner))
    return lambda: itertools.chain.from_iterable([pick(owner) for pick, owner in reads])


def _only(name: str) -> Callable[[Mapping[str, Any]], Iterable[Any]]:
    return lambda owner: (owner[name],)
