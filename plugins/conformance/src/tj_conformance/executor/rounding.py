"""Values that rounding decides, as of a singular matrix: eager's own errors say how much.

An error is the difference from the same call in double precision. Eager's are measured for the
arguments as they are, and for all of them a few roundings larger or smaller: that keeps ties, zeros
and the order of numbers, and rounds in other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["STEPS", "Drawn", "Runs", "rounds", "scaled"]

STEPS = (1, -1, 2, -2, 3, -3)
"""The number of roundings by which arguments are larger."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Functions of a number of roundings: results of eager, and those in double precision."""

    eager: Callable[[int], Any]
    exact: Callable[[int], Any]


def rounds(got: Any, expected: Any, runs: Runs) -> bool:
    """Decide if the errors of ``got`` are like those of eager, which computed ``expected``.

    The largest of each tensor is at most twice eager's, or eager lacks half of the digits. False
    where the program has no form in double precision.
    """
    try:
        exact = list(_tensors(runs.exact(0)))
        ours, theirs = _errors(got, exact), [_errors(expected, exact)]
        like = [x.to(y.dtype) for x, y in zip(exact, _tensors(expected), strict=True)]
        if _covers(ours, theirs, like):
            return True
        for step in STEPS:
            theirs.append(_errors(runs.eager(step), _tensors(runs.exact(step))))
        return _covers(ours, theirs, like)
    except Exception:  # it has no form in double precision
        return False


def scaled(tree: Any, step: int) -> Any:
    """``tree``, its floating-point numbers ``step`` roundings larger."""

    def each(x: torch.Tensor) -> torch.Tensor:
        if not step or not (x.is_floating_point() or x.is_complex()):
            return x
        factor = 1 + step * torch.finfo(x.dtype).eps
        return (x.detach() * factor).requires_grad_(x.requires_grad)

    return tree_map_only(torch.Tensor, each, tree)


class Drawn(TorchDispatchMode):
    """Random numbers as ``dtype`` has them: generators draw others in double precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator that draws in the data type, and widen its results."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or func._schema.is_mutable:
            return func(*args, **kwargs)
        narrow = tree_map_only(torch.Tensor, self._narrow, (args, kwargs))
        args, kwargs = tree_map_only(torch.dtype, self._named, narrow)
        return tree_map_only(torch.Tensor, _wide, func(*args, **kwargs))

    def _narrow(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype) if x.dtype is torch.float64 else x

    def _named(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if dtype is torch.float64 else dtype


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


@dataclass(frozen=True, slots=True)
class _Error:
    """The largest error of a tensor's finite numbers, and the kinds of errors of others."""

    largest: float
    kinds: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, found: torch.Tensor, exact: torch.Tensor) -> _Error:
        if not _real(found):
            return cls(0.0 if torch.equal(found, exact) else float("inf"), frozenset())
        mine = found.to(torch.complex128 if found.is_complex() else torch.float64)
        known = exact.to(found.dtype).to(mine.dtype)  # what is infinite in the data type is
        same = torch.isfinite(mine) & torch.isfinite(known)
        other = ~same & (mine != known) & ~(mine.isnan() & known.isnan())
        kinds = zip(map(_kind, mine[other]), map(_kind, known[other]), strict=True)
        return cls(_most((mine - exact.to(mine.dtype))[same]), frozenset(kinds))


def _errors(found: Any, exact: Any) -> list[_Error]:
    return [_Error.of(x, known) for x, known in zip(_tensors(found), exact, strict=True)]


def _real(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _kind(x: torch.Tensor) -> str:
    return "finite" if torch.isfinite(x) else "not finite"


def _most(x: torch.Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0


def _covers(ours: list[_Error], theirs: list[list[_Error]], exact: list[torch.Tensor]) -> bool:
    """Decide for all tensors; ``theirs`` are the errors of eager's runs."""
    return all(
        _like(mine, each, known)
        for mine, each, known in zip(ours, zip(*theirs, strict=True), exact, strict=True)
    )


def _like(mine: _Error, theirs: tuple[_Error, ...], known: torch.Tensor) -> bool:
    largest = max(error.largest for error in theirs)
    if not _real(known):
        return mine.largest <= largest == 0
    eps, size = torch.finfo(known.dtype).eps, _most(known[torch.isfinite(known)])
    if largest > eps**0.5 * max(size, 1):
        return True  # nothing is known of it
    kinds = frozenset[tuple[str, str]]().union(*(error.kinds for error in theirs))
    return mine.largest <= 2 * largest + 4 * eps * (1 + size) and mine.kinds <= kinds


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield leaf.detach().resolve_conj().to_dense()
