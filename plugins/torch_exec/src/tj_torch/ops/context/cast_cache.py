"""PyTorch's cache of autocast's casts: a leaf is cast once, until the outermost region ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tj_core.extend import TensorProxy

__all__ = ["CastCache", "ambient_cache", "is_leaf", "keeping_no_casts", "may_be_kept"]


@dataclass(frozen=True, slots=True)
class CastCache:
    """The cache at one point of a program: ``number`` counts how often it was empty.

    ``depth`` is how many regions are entered, ``enabled`` whether the innermost keeps casts.
    """

    depth: int = 0
    enabled: bool = True
    number: int = 0
    fresh: Iterator[int] = field(default_factory=lambda: count(1), compare=False)

    @property
    def key(self) -> int | None:
        """Key by which the calls of a region share casts; None if they share none."""
        return self.number if self.depth and self.enabled else None

    def entered(self, enabled: bool | None) -> CastCache:
        """The cache in a region that is entered here; None keeps casts as its surroundings do."""
        inside = self if self.depth else self.cleared()
        enabled = self.enabled if enabled is None else enabled
        return replace(inside, depth=self.depth + 1, enabled=enabled)

    def left(self, inside: CastCache) -> CastCache:
        """This cache, when the region that was entered here is left; ``inside`` is its last."""
        return replace(self, number=inside.number)

    def cleared(self) -> CastCache:
        """The cache, empty."""
        return replace(self, number=next(self.fresh))


def ambient_cache() -> CastCache:
    """The cache as it is around the program; what is in it is not known."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return CastCache(depth, torch.is_autocast_cache_enabled())


@contextlib.contextmanager
def keeping_no_casts() -> Iterator[None]:
    """Leave PyTorch's cache alone inside: casts are made anew, and none is kept."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)


def may_be_kept(p: TensorProxy) -> bool:
    """True if autocast may keep a cast of a value like ``p``, where it is a leaf."""
    return p.requires_grad and p.dtype.name == "float32"


def is_leaf(tensor: torch.Tensor) -> bool:
    """True if autocast takes ``tensor`` for one of a model's weights."""
    return tensor.is_leaf and not tensor._is_view()
