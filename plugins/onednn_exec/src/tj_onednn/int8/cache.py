"""Rounded weights, kept from run to run, and made again after a write."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

import torch

from tj_onednn.adapter import version
from tj_onednn.int8.kernels import quantise
from tj_onednn.packing import Frozen

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

__all__ = ["Cache", "Rounded", "kept"]

Tensor = torch.Tensor
Key: TypeAlias = "tuple[int, bool, str]"


@dataclass(eq=False)
class Made:
    """The results of `quantise` for a weight, which is held: no other tensor gets its address."""

    frozen: Frozen
    seen: int
    results: tuple[Tensor, Tensor]

    def of(self, weight: Tensor) -> bool:
        """Decide if ``weight`` is the one, and was not written since."""
        mine = self.frozen
        same = mine.weight.data_ptr() == weight.data_ptr() and mine.of(weight)
        # Another tensor on the same memory may have a version counter of its own.
        known = not mine.written and not mine.changed
        return same and known and version(weight) == self.seen


@dataclass
class Cache:
    """Rounded weights of living programs.

    Programs of one function, such as those for other sizes, share them. Two calls in one program
    do not: to the program, results of two calls are two pieces of memory.
    """

    table: MutableMapping[Key, Made] = field(default_factory=WeakValueDictionary)

    def state(self, call: BoundSymbol) -> Rounded:
        """Make the state of ``call``."""
        return Rounded(self, call.label)


@dataclass(eq=False)
class Rounded:
    """The state of the call ``label``: what it returned last."""

    cache: Cache
    label: str
    last: Made | None = None

    def of(self, weight: Tensor, transposed: bool) -> tuple[Tensor, Tensor]:
        """Find the rounded ``weight``, or round it."""
        last = self.last
        if last is not None and last.of(weight):
            return last.results
        # Nobody counts writes to these. (A detached one has a counter, which stays at zero.)
        if weight.is_inference():
            return quantise(weight, transposed)
        key = weight.data_ptr(), transposed, self.label
        found = self.cache.table.get(key)
        if found is None or not found.of(weight):
            # Before the weight is read: a write on another thread is seen next time.
            frozen, seen = Frozen(weight.detach(), version(weight)), version(weight)
            found = Made(frozen, seen, quantise(weight, transposed))
            self.cache.table[key] = found
        self.last = found
        return found.results


def kept(weight: Tensor, transposed: bool = False, *, state: Rounded) -> tuple[Tensor, Tensor]:
    """Compute `quantise`, or find its results in ``state``."""
    return state.of(weight, transposed)
