"""PyTorch's database of operations with every call that nvFuser takes in a region.

Regions run on the reference, which has nvFuser's rules of data types. The default run takes a
sample of operations; ``TJ_FULL=1`` takes all.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tj_conformance.databases.op_db import full_name
from tj_conformance.gradients.gradients import first_gradients
from tj_conformance.oracle.compare import call_differences, differences, seeded
from tj_conformance.sampling import FULL
from tj_conformance.sweep.sample import samples
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

pytestmark = pytest.mark.sampled(2)

EVERY = 1 if FULL else 40
SAMPLES = 4 if FULL else 2
DTYPES = (
    (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32,
     torch.bool)
    if FULL
    else (torch.float32, torch.bfloat16, torch.int64)
)  # fmt: skip


OPTIONS = {"minimum": 1, "matmul": True, "scans": True}
"""Regions of single calls, too."""

STRIDES_OF_GRADIENTS = {"ormqr"}
"""Operations of whose gradients PyTorch's fake tensors have other strides than real ones."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", op_db[7::EVERY] if EVERY > 1 else op_db, ids=full_name)
def test_operations(op: Any, dtype: torch.dtype, fusing: Any) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip(f"{dtype} has no kernel on CPUs")
    torch.compiler.reset()
    jitted = fusing(lambda *args, **kwargs: op.op(*args, **kwargs), OPTIONS, dynamic=False)
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype, SAMPLES):
            if sample.eager is not None:
                found += wrong(op, jitted, sample, sample.eager)
    assert found == []


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
    if serious and values and as_exact(op, sample, (got, gradients), eager):
        return []
    return serious


def as_exact(op: Any, sample: Any, got: Any, eager: Any) -> bool:
    """Whether ``got`` is as near as eager to what double precision makes of the arguments.

    In low precision, PyTorch's kernels for CPUs round in places where regions do not.
    """
    args, kwargs = tree_map_only(torch.Tensor, doubled, sample.arguments())
    exact = op.op(*args, **kwargs)
    gradients = first_gradients(exact, (args, kwargs)) if eager.gradients is not None else []
    triples = zip(
        *map(tree_leaves, (got, (eager.result, eager.gradients or []), (exact, gradients))),
        strict=True,
    )
    return all(nearer(*triple) for triple in triples if isinstance(triple[0], torch.Tensor))


def doubled(x: torch.Tensor) -> torch.Tensor:
    """``x`` in double precision, a leaf if it was one."""
    made = x.detach().double() if x.is_floating_point() else x.detach().clone()
    return made.requires_grad_(x.requires_grad)


def nearer(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the error of ``mine`` is at most that of ``eager``, but for one rounding."""
    if not mine.is_floating_point():
        return torch.equal(mine, eager)
    errors = [(x.double() - exact.double()).abs() for x in (mine.detach(), eager.detach())]
    rounding = torch.finfo(mine.dtype).eps * (1 + exact.detach().double().abs())
    return bool((errors[0] <= 2 * errors[1].max() + 4 * rounding).all())
