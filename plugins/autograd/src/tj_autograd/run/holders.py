"""Tensors of subclasses that hold what is saved: whether they were written since.

What is saved of them are the dense tensors inside, whose version counters say nothing of it: a
write to the whole counts there alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import TensorProxy, alias_facts, is_subclass

from tj_autograd.run.kept import written_since
from tj_autograd.split.halves import Halves

__all__ = ["Holders", "Versions", "check_versions", "holders"]

Versions = Sequence[tuple[Any, int]]
"""Weak references to tensors, each with the version that it had."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Where they are among the inputs of the program, and among its roots."""

    inputs: tuple[int, ...] = ()
    roots: tuple[int, ...] = ()

    def among(self, places: Iterable[int], values: Sequence[Any]) -> Versions:
        """Those at ``places`` with their versions now."""
        return [(weakref.ref(values[i]), values[i]._version) for i in places]


def holders(halves: Halves) -> Holders:
    """Those of the program of ``halves``."""
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
    """See that nobody has written them.

    :raises RuntimeError: if somebody has, as PyTorch's autograd does.
    """
    for reference, version in versions:
        tensor: torch.Tensor | None = reference()
        if tensor is not None and tensor._version != version:
            raise RuntimeError(written_since(tensor, version))
