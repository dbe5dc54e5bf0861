"""Tensor kind of all wrapper subclasses: the answers to all that tj-torch asks about them."""

from __future__ import annotations

from tj_core.extend import RuleTable
from tj_torch.extend import TENSOR_KINDS, TensorKind
from tj_torch.internal import dense_tensors

from tj_subclass.expansion.gradients import wrapped_derivation
from tj_subclass.expansion.run import WrappedRun
from tj_subclass.writes.copies import check_copy, is_laid_out
from tj_subclass.writes.held import check_held

__all__ = ["WRAPPERS", "rules"]

WRAPPERS = TensorKind(
    run=WrappedRun.of,
    derive=wrapped_derivation,
    parts=dense_tensors,
    check_writes=check_held,
    check_copy=check_copy,
    is_laid_out=is_laid_out,
)


def rules() -> RuleTable[TensorKind]:
    """Register the kind for every class that has none of its own."""
    table: RuleTable[TensorKind] = RuleTable(TENSOR_KINDS)
    table.set("*", WRAPPERS)
    return table
