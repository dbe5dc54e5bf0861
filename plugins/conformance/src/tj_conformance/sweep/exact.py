"""What a compiled operation does otherwise than eager, beyond what rounding explains."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tj_conformance.gradients.gradients import first_gradients
from tj_conformance.oracle.compare import call_differences, differences, seeded

__all__ = ["STRIDES_OF_GRADIENTS", "wrong"]

STRIDES_OF_GRADIENTS = {"ormqr"}
"""Operations of whose gradients PyTorch's fake tensors have other strides than real ones."""


def wrong(op: Any, jitted: Any, sample: Any, eager: Any) -> list[str]:
    """In what ``jitted`` differs from eager, by more than eager is from the exact result."""
    mine = sample.arguments()
    got = seeded(jitted, *mine)
    gradients = first_gradients(got, mine) if eager.gradients is not None else []
    found = call_differences(got, mine, eager.result, eager.arguments, values=sample.defined)
    if op.name not in STRIDES_OF_GRADIENTS:
        found += differences(gradients, eager.gradients or [], "gradients", values=sample.defined)
    serious = [str(d) for d in found if not d.rounding and sample.defined]
    values = all("not equal" in text for text in serious)
    if serious and values and _as_exact(op, sample, (got, gradients), eager):
        return []
    return serious


def _as_exact(op: Any, sample: Any, got: Any, eager: Any) -> bool:
    """Whether ``got`` is as near as eager to what double precision makes of the arguments.

    In low precision, PyTorch's kernels for CPUs round in places where fused kernels do not.
    """
    args, kwargs = tree_map_only(torch.Tensor, _doubled, sample.arguments())
    exact = op.op(*args, **kwargs)
    gradients = first_gradients(exact, (args, kwargs)) if eager.gradients is not None else []
    triples = zip(
        *map(tree_leaves, (got, (eager.result, eager.gradients or []), (exact, gradients))),
        strict=True,
    )
    return all(_nearer(*triple) for triple in triples if isinstance(triple[0], torch.Tensor))


def _doubled(x: torch.Tensor) -> torch.Tensor:
    """``x`` in double precision, a leaf if it was one."""
    made = x.detach().double() if x.is_floating_point() else x.detach().clone()
    return made.requires_grad_(x.requires_grad)


def _nearer(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the error of ``mine`` is at most that of ``eager``, but for one rounding."""
    if not mine.is_floating_point() or not mine.numel():
        return torch.equal(mine, eager)
    errors = [(x.double() - exact.double()).abs() for x in (mine.detach(), eager.detach())]
    rounding = torch.finfo(mine.dtype).eps * (1 + exact.detach().double().abs())
    return bool((errors[0] <= 2 * errors[1].max() + 4 * rounding).all())
