"""Marks in effects for PyTorch's autograd: version counters, and writes that it does not see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tj_core.extend import BoundSymbol, requires_grad

__all__ = ["UNTRACKED", "VERSIONS", "autograd_marks", "checks_writes"]

VERSIONS = "versions"
"""Mark of a mutated argument whose version counter does not go up by one."""

UNTRACKED = "untracked"
"""Mark of a mutated argument whose write autograd does not see though gradients are on."""


def autograd_marks(
    versions: Mapping[int, int], untracked: Iterable[int]
) -> Iterator[tuple[str, int, int]]:
    """Marks of a call's arguments by flat index: bumps of version counters, unseen writes."""
    yield from ((VERSIONS, index, count) for index, count in versions.items() if count != 1)
    yield from ((UNTRACKED, index, 1) for index in untracked)


def checks_writes(call: BoundSymbol) -> bool:
    """Test if autograd checks the versions or bases of a call's arguments.

    Autograd refuses some views of memory that was mutated.
    """
    tracked = any(map(requires_grad, call.flat_args))
    return tracked and call.context.get("grad") is not False
