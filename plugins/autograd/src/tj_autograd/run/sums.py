"""Sums, in eager's order, of gradients that several segments contribute to.

Autograd adds what arrives at a value in the order in which nodes run. A segment is one node that
contributes for many calls, so with three contributions or more the order, and with it the rounding,
may differ from eager. Such a value reaches each of its calls through a `Summed` node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import TensorProxy

if TYPE_CHECKING:
    from tj_autograd.split.halves import Part

__all__ = ["Summed", "summed"]


class Summed(torch.autograd.Function):
    """One alias of a value for each use; its backward adds the gradients in order."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, uses: int) -> tuple[torch.Tensor, ...]:
        """Make ``uses`` aliases of ``value``."""
        # A use without gradient adds nothing; zeros would be added, and could change -0.0.
        ctx.set_materialize_grads(False)
        return tuple([value.detach() for _ in range(uses)])

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        """Add the tangents that exist, from the first use to the last."""
        total = None
        for tangent in tangents:
            if tangent is not None:
                total = tangent if total is None else total + tangent
        return total, None


def summed(
    contributions: Sequence[Mapping[str, str]],
    order: Mapping[str, int],
    parts: Iterable[Part],
) -> dict[str, tuple[str, ...]]:
    """Find the values whose gradient a `Summed` node adds, with the keys of the contributions in
    order.

    ``contributions`` maps, for each segment, the key ``value.call`` to the value. ``order`` maps
    the label of a call to its index in the program; ``parts`` are the backwards of the segments.
    Eager adds from the last call to the first, autograd from the last segment to the first. Two
    contributions have the same sum in either order, which is laid out as the first.
    """
    made = (item for part in parts for item in part.gradients.items())
    strides = {key: p.strides for key, p in made if isinstance(p, TensorProxy)}
    arriving: dict[str, list[str]] = {}
    for found in reversed(contributions):
        for key, value in found.items():
            arriving.setdefault(value, []).append(key)
    wanted = {value: _last_first(value, keys, order) for value, keys in arriving.items()}
    return {
        value: tuple(keys)
        for value, keys in wanted.items()
        if keys != arriving[value] and (len(keys) > 2 or len({strides.get(k) for k in keys}) > 1)
    }


def _last_first(value: str, keys: Iterable[str], order: Mapping[str, int]) -> list[str]:
    return sorted(keys, key=lambda key: -order.get(key.removeprefix(f"{value}."), 0))
