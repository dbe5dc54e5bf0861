"""Arguments for programs that write and alias, by need of gradients and by shared memory.

A layout is a function that makes a `Scene` from tensors of a `Source`. Values are small whole
numbers, so that sums and products are exact in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tj_conformance.programs.aliasing import Scene

__all__ = [
    "KINDS",
    "Layout",
    "Source",
    "base_and_row",
    "columns",
    "halves",
    "one",
    "overlapping",
    "pair",
    "placed",
    "rows",
    "same",
    "storage_only",
    "viewed",
]

KINDS = ("plain", "leaf", "inner")
"""Kinds of tensors: without gradients; leaves that require grad; results of operations on such
leaves.
"""


class Source:
    """Makes tensors of one kind, and remembers the leaves behind them."""

    def __init__(self, kind: str = "plain") -> None:
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is none of {KINDS}")
        self.kind = kind
        self.leaves: list[torch.Tensor] = []

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor of ``shape`` that owns its memory; whole numbers never need gradients."""
        count = torch.Size(shape).numel()
        tensor = torch.arange(1, count + 1).remainder(5).add(1).reshape(shape).to(dtype)
        if self.kind == "plain" or not (dtype.is_floating_point or dtype.is_complex):
            return tensor
        self.leaves.append(tensor.requires_grad_())
        return tensor if self.kind == "leaf" else tensor * 1

    def scene(self, *args: Any, watched: tuple[torch.Tensor, ...] = ()) -> Scene:
        """The scene of these arguments, with the leaves among what is watched."""
        return Scene(args, (*self.leaves, *watched))


Layout = Callable[[Source], Scene]


def placed(layout: Layout, kind: str) -> Callable[[], Scene]:
    """Bind ``layout`` to tensors of ``kind``, as `check` takes it: each call makes a new scene."""
    return lambda: layout(Source(kind))


def one(new: Source) -> Scene:
    """A matrix."""
    return new.scene(new(2, 3))


def pair(new: Source) -> Scene:
    """A matrix and a vector that share nothing."""
    return new.scene(new(2, 3), new(3))


def same(new: Source) -> Scene:
    """One square matrix, given twice."""
    x = new(3, 3)
    return new.scene(x, x)


def viewed(new: Source) -> Scene:
    """A matrix and a vector, of which the caller keeps views, made before the call."""
    x, y = new(2, 3), new(3)
    return new.scene(x, y, watched=(x.view(-1), x[1], y[1:]))


def overlapping(new: Source) -> Scene:
    """Two views of one base at different offsets, overlapping in part."""
    base = new(9)
    return new.scene(base[1:7].view(2, 3), base[4:7], watched=(base,))


def base_and_row(new: Source) -> Scene:
    """A matrix and its second row."""
    x = new(2, 3)
    return new.scene(x, x[1])


def rows(new: Source) -> Scene:
    """Two views of one matrix that lie in each other: a slice, and a row inside it."""
    base = new(4, 3)
    return new.scene(base[1:3], base[2], watched=(base,))


def halves(new: Source) -> Scene:
    """Two views of one base that do not overlap."""
    base = new(9)
    return new.scene(base[:6].view(2, 3), base[6:], watched=(base,))


def columns(new: Source) -> Scene:
    """Interleaved columns of one base: no element in common, though the ranges cross."""
    base = new(3, 4)
    return new.scene(base[:2, 0:4:2], base[:2, 1], watched=(base,))


def storage_only(new: Source) -> Scene:
    """Two overlapping tensors of one storage without a common base that autograd knows."""
    base = new(9)
    x, y = base.detach()[1:7].view(2, 3), base.detach()[4:7]
    return new.scene(x, y, watched=(base,))
