"""Gradients of one value that several segments contribute to, summed as in eager.

Autograd adds what arrives at a value in the order in which nodes run. A segment is one node that
contributes for many calls, so of three contributions or more the order, and with it the rounding,
may be another than in eager. Such a value goes to each call through a node between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["Summed", "summed"]


class Summed(torch.autograd.Function):
    """One alias of a value for each of its uses; the gradient is the sum in their order."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, uses: int) -> tuple[torch.Tensor, ...]:
        """``uses`` aliases of ``value``."""
        ctx.set_materialize_grads(False)
        return tuple([value.detach() for _ in range(uses)])

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        """The sum of the tangents that exist, from the first use to the last."""
        total = None
        for tangent in tangents:
            if tangent is not None:
                total = tangent if total is None else total + tangent
        return total, None


def summed(
    contributions: Sequence[Mapping[str, str]], order: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """The values whose gradient a node sums, with their contributions in eager's order.

    ``contributions`` are those of each segment, ``value.call`` to the value; ``order`` has the
    place of each call in the program. Eager goes back from the last one, autograd from the last
    segment. Of two contributions the order does not matter.
    """
    arriving: dict[str, list[str]] = {}
    for found in reversed(contributions):
        for key, value in found.items():
            arriving.setdefault(value, []).append(key)
    wanted = {value: _last_first(value, keys, order) for value, keys in arriving.items()}
    return {
        value: tuple(keys)
        for value, keys in wanted.items()
        if len(keys) > 2 and keys != arriving[value]
    }


def _last_first(value: str, keys: Iterable[str], order: Mapping[str, int]) -> list[str]:
    return sorted(keys, key=lambda key: -order.get(key.removeprefix(f"{value}."), 0))
