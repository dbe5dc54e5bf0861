"""Comparison with double precision, for programs that amplify rounding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from tj_conformance.oracle.configurations import current

if TYPE_CHECKING:
    from tj_conformance.oracle.compare import Difference

__all__ = ["as_near", "doubled", "judged", "near", "tensors"]


def judged(
    found: Sequence[Difference], got: Any, eager: Any, exact: Callable[[], Any]
) -> list[Difference]:
    """The differences ``found`` between ``got`` and ``eager`` that are no rounding.

    Where the configuration rounds, values alone may differ, if they are as near as eager's to those
    of ``exact``, the program in double precision.
    """
    values = current().rounds and all("not equal" in d.what or "not close" in d.what for d in found)
    return [] if found and values and as_near(got, eager, exact) else list(found)


def doubled(tree: Any) -> Any:
    """``tree`` with floating-point tensors in double precision, leaves where they were leaves."""
    return tree_map_only(torch.Tensor, _doubled, tree)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        made = x.detach().to(torch.complex128)
    else:
        made = x.detach().double() if x.is_floating_point() else x.detach().clone()
    return made.requires_grad_(x.requires_grad)


def as_near(got: Any, eager: Any, exact: Callable[[], Any], amplified: float = 2) -> bool:
    """Check that the error of each tensor of ``got`` is at most twice eager's, relative to
    ``exact``.

    That applies to the largest and to the median error, up to a few roundings. Where eager's error
    is a hundred roundings or more, ``amplified`` replaces the factor of two: in a network of
    hundreds of tensors, chance makes some differ by more than two. False as well if ``exact``, the
    program in double precision, raises or has other results.
    """
    try:
        return near(got, [(eager, exact())], amplified)
    except Exception:  # it has no form in double precision
        return False


def near(
    got: Any, runs: Sequence[tuple[Any, Any]], amplified: float = 2, *, vague: bool = False
) -> bool:
    """Check as `as_near` does; each of ``runs`` has eager's results and those in double precision.

    The first run is for the arguments of ``got``, others are for arguments that differ by a few
    roundings: the largest of eager's errors counts. ``vague``: a tensor of which eager lacks half
    of the digits may be anything.
    """
    pairs = (zip(tensors(eager), tensors(exact), strict=True) for eager, exact in runs)
    return all(
        _nearer(mine, each, amplified, vague)
        for mine, *each in zip(tensors(got), *pairs, strict=True)
    )


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of ``tree``, dense; of wrapper subclasses, what they hold."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and is_traceable_wrapper_subclass(leaf):
            names, _ = leaf.__tensor_flatten__()
            yield from tensors([getattr(leaf, name) for name in names])
        elif isinstance(leaf, torch.Tensor):
            yield leaf.detach().resolve_conj().to_dense()


@dataclass(frozen=True, slots=True)
class _Error:
    """The largest and the median error of a tensor's finite numbers, and the kinds of errors of
    others.
    """

    largest: float
    median: float
    kinds: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, found: torch.Tensor, exact: torch.Tensor) -> _Error:
        mine = found.to(torch.complex128 if found.is_complex() else torch.float64)
        known = exact.to(found.dtype).to(mine.dtype)  # what is infinite in the data type is
        same = torch.isfinite(mine) & torch.isfinite(known)
        other = ~same & (mine != known) & ~(mine.isnan() & known.isnan())
        kinds = zip(map(_kind, mine[other]), map(_kind, known[other]), strict=True)
        error = (mine - exact.to(mine.dtype))[same].abs()
        return cls(_most(error), error.median().item() if len(error) else 0.0, frozenset(kinds))

    def __or__(self, other: _Error) -> _Error:
        largest, median = max(self.largest, other.largest), max(self.median, other.median)
        return _Error(largest, median, self.kinds | other.kinds)


def _nearer(
    mine: torch.Tensor,
    runs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    amplified: float,
    vague: bool,
) -> bool:
    eager, exact = runs[0]
    if not (mine.is_floating_point() or mine.is_complex()) or not mine.numel():
        return torch.equal(mine, eager)
    ours = _Error.of(mine, exact)
    theirs = functools.reduce(_Error.__or__, (_Error.of(*run) for run in runs))
    known = exact.to(mine.dtype)
    eps, size = torch.finfo(mine.dtype).eps, _most(known[torch.isfinite(known)])
    if vague and theirs.largest > eps**0.5 * max(size, 1):
        return True
    times = amplified if theirs.largest > 100 * eps * size else 2
    rounding = 4 * eps * (1 + size)
    return (
        ours.largest <= times * theirs.largest + rounding
        and ours.median <= times * theirs.median + rounding
        and ours.kinds <= theirs.kinds
    )


def _kind(x: torch.Tensor) -> str:
    return "finite" if torch.isfinite(x) else "not finite"


def _most(x: torch.Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0
