"""Version checks of tensor subclasses that hold saved tensors.

The dense tensors inside are what is saved. A write to the subclass counts up the version of the
subclass alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.extend import TensorProxy, alias_facts, is_subclass

from tj_autograd.run.saved_inputs import written_since

if TYPE_CHECKING:
    import torch

    from tj_autograd.split.halves import Halves

__all__ = ["Holders", "Versions", "check_versions", "holders"]

Versions = Sequence[tuple[Any, int]]
"""Weak references to tensors, each with its version when it was saved."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Indices of such subclasses among the inputs of the program, and among its roots."""

    inputs: tuple[int, ...] = ()
    roots: tuple[int, ...] = ()

    def among(self, places: Iterable[int], values: Sequence[Any]) -> Versions:
        """The values at ``places``, by weak reference, with their current versions."""
        # Weak: what is saved are the dense tensors, and the wrapper may be freed.
        return [(weakref.ref(values[i]), values[i]._version) for i in places]


def holders(halves: Halves) -> Holders:
    """Find the inputs and roots of ``halves`` that are subclasses and hold a saved tensor."""
    values = (*halves.forward.inputs, *halves.roots)
    if not any(map(is_subclass, values)):
        return Holders()
    memory = alias_facts(halves.forward).roots
    dense = (p for p in halves.saved if isinstance(p, TensorProxy) and p.subclass is None)
    saved = {memory[p.name] for p in dense}

    def found(proxies: Sequence[Any]) -> tuple[int, ...]:
        pairs = enumerate(proxies)
        return tuple(i for i, p in pairs if is_subclass(p) and memory[p.name] in saved)

    return Holders(found(halves.forward.inputs), found(halves.roots))


def check_versions(versions: Versions) -> None:
    """Check that none of the tensors has been written since.

    :raises RuntimeError: if one has, as PyTorch's autograd does.
    """
    for reference, version in versions:
        tensor: torch.Tensor | None = reference()
        if tensor is not None and tensor._version != version:
            raise RuntimeError(written_since(tensor, version))
