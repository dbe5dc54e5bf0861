"""Where autocast keeps casts: eager casts a leaf once, until the outermost region ends.

A plugin that makes casts explicit needs to know which calls share them. Calls under autocast carry
the tag ``CAST_CACHE``, whose value is the number of the stretch of the program in which they do;
inputs that a cast may be kept of carry ``LEAF``. Where no such plugin is there, neither is put.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from tj_core.extend import Tag, TensorProxy

__all__ = ["CAST_CACHE", "LEAF", "TABLE", "CastCache", "ambient_cache", "is_leaf", "may_be_kept"]

TABLE = "autocast"
"""The rule table that a plugin brings which makes casts explicit."""

CAST_CACHE = Tag(
    "CAST_CACHE",
    "autocast keeps casts for the calls with the same number",
    carriers=frozenset({"call"}),
)
LEAF = Tag(
    "LEAF",
    "autocast may keep a cast of the input, a leaf of autograd; True and False are what it was in "
    "the captured call, where it may be another tensor in the next",
    carriers=frozenset({"proxy"}),
    to_replacement=False,
)


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
        """What the calls here share casts by; None if they do not."""
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


def may_be_kept(p: TensorProxy) -> bool:
    """Whether autocast may keep a cast of a value like ``p``, if it is a leaf."""
    return p.requires_grad and p.dtype.name == "float32"


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether autocast takes ``tensor`` for one of a model's weights."""
    return tensor.is_leaf and not tensor._is_view()
