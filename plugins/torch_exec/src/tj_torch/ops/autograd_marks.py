"""What effects say for PyTorch's autograd: version counters, and writes that it does not see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tj_core.extend import BoundSymbol, requires_grad

__all__ = ["UNTRACKED", "VERSIONS", "autograd_marks", "checks_writes"]

VERSIONS = "versions"
"""A mutated argument whose version counter goes up by another number than one."""

UNTRACKED = "untracked"
"""A mutated argument whose write autograd, though gradients are on, does not see."""


def autograd_marks(
    versions: Mapping[int, int], untracked: Iterable[int]
) -> Iterator[tuple[str, int, int]]:
    """The marks of a call's arguments, by flat index: bumps of version counters, unseen writes."""
    yield from ((VERSIONS, index, count) for index, count in versions.items() if count != 1)
    yield from ((UNTRACKED, index, 1) for index in untracked)


def checks_writes(call: BoundSymbol) -> bool:
    """Whether autograd looks at an argument's version, or at what it is a view of.

    It does not take every view of memory that was mutated.
    """
    tracked = any(map(requires_grad, call.flat_args))
    return tracked and call.context.get("grad") is not False
