"""Results judged by double precision, where a program amplifies what rounding makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["as_near", "doubled"]


def doubled(tree: Any) -> Any:
    """``tree`` with floating-point tensors in double precision, leaves where they were leaves."""
    return tree_map_only(torch.Tensor, _doubled, tree)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        made = x.detach().to(torch.complex128)
    else:
        made = x.detach().double() if x.is_floating_point() else x.detach().clone()
    return made.requires_grad_(x.requires_grad)


def as_near(got: Any, eager: Any, exact: Callable[[], Any]) -> bool:
    """Whether each tensor of ``got`` is as near to ``exact`` as eager's, at most twice as far.

    That counts for the largest error and for the median one, but for one rounding. False as well
    where ``exact``, the program in double precision, raises or returns something else.
    """
    try:
        trees = [_tensors(tree) for tree in (got, eager, exact())]
        return all(_nearer(*each) for each in zip(*trees, strict=True))
    except Exception:  # it has no form in double precision
        return False


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t.detach() for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _nearer(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    if not (mine.is_floating_point() or mine.is_complex()) or not mine.numel():
        return torch.equal(mine, eager)
    wide = torch.complex128 if mine.is_complex() else torch.float64
    ours, theirs = ((x.to(wide) - exact).abs().flatten() for x in (mine, eager))
    rounding = torch.finfo(mine.dtype).eps * (1 + exact.abs().max())
    return all(
        bool(measure(ours) <= 2 * measure(theirs) + rounding)
        for measure in (torch.max, torch.median)
    )
