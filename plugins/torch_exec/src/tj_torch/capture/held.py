"""Tensors that a captured graph holds, where it holds them.

An optimizer that dies takes its state from the graph of its step; so no program has it of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Held", "held_at", "held_by"]


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor's place: a dict of attributes, parameters or buffers, and its name there."""

    owner: Mapping[str, Any]
    name: str


def held_at(graph: torch.fx.GraphModule, path: str) -> Held:
    """The place of the tensor that is ``path``, as in ``block.weight``, of ``graph``."""
    *before, name = path.split(".")
    owner: Any = graph
    for part in before:
        owner = getattr(owner, part)
    kinds = (vars(owner), vars(owner).get("_parameters", {}), vars(owner).get("_buffers", {}))
    return next(Held(kind, name) for kind in kinds if name in kind)


def held_by(places: Sequence[Held]) -> Iterator[Any]:
    """The tensors that are at ``places`` now."""
    return (place.owner[place.name] for place in places)
