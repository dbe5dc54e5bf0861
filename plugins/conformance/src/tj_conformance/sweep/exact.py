"""Differences of a compiled operation from eager, beyond rounding."""

from __future__ import annotations

from typing import Any

from tj_conformance.gradients.gradients import first_gradients
from tj_conformance.oracle.compare import call_differences, differences, seeded
from tj_conformance.oracle.nearness import as_near, doubled

__all__ = ["STRIDES_OF_GRADIENTS", "wrong"]

STRIDES_OF_GRADIENTS = {"ormqr"}
"""Operations whose gradients have other strides on PyTorch's fake tensors than on real ones."""


def wrong(op: Any, jitted: Any, sample: Any, eager: Any) -> list[str]:
    """Differences of ``jitted`` from eager that exceed eager's own error."""
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
    """Check that ``got`` is as near as eager to the result in double precision.

    In low precision, PyTorch's kernels for CPUs round where fused kernels do not.
    """

    def exact() -> Any:
        args, kwargs = doubled(sample.arguments())
        out = seeded(op.op, args, kwargs)
        found = first_gradients(out, (args, kwargs)) if eager.gradients is not None else []
        return out, found

    return as_near(got, (eager.result, eager.gradients or []), exact)
