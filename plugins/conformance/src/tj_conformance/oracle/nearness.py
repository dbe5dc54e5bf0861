"""Comparison with double precision, for programs that amplify rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from tj_conformance.oracle.configurations import current

if TYPE_CHECKING:
    from tj_conformance.oracle.compare import Difference

__all__ = ["as_near", "doubled", "judged"]


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
        mine, theirs, known = (_tensors(tree) for tree in (got, eager, exact()))
        return all(_nearer(*each, amplified) for each in zip(mine, theirs, known, strict=True))
    except Exception:  # it has no form in double precision
        return False


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of ``tree``; of wrapper subclasses, what they hold."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and is_traceable_wrapper_subclass(leaf):
            names, _ = leaf.__tensor_flatten__()
            yield from _tensors([getattr(leaf, name) for name in names])
        elif isinstance(leaf, torch.Tensor):
            yield leaf.detach()


def _nearer(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, amplified: float) -> bool:
    if not (mine.is_floating_point() or mine.is_complex()) or not mine.numel():
        return torch.equal(mine, eager)
    wide = torch.complex128 if mine.is_complex() else torch.float64
    ours, theirs = ((x.to(wide) - exact).abs().flatten() for x in (mine, eager))
    eps, largest = torch.finfo(mine.dtype).eps, exact.abs().max()
    rounding = 4 * eps * (1 + largest)
    times = amplified if theirs.max() > 100 * eps * largest else 2
    return all(
        bool(measure(ours) <= times * measure(theirs) + rounding)
        for measure in (torch.max, torch.median)
    )
