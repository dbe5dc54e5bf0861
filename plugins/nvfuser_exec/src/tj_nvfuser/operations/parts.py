"""Parts of values along one dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_nvfuser.refusal import refuse

if TYPE_CHECKING:
    from tj_core.extend import Dim

    from tj_nvfuser.definition import Definition, Value

__all__ = ["pick", "sliced"]

MERGED = 2
"""Dimensions behind a slice that kernels merge, and then read from the start of the tensor."""


def sliced(d: Definition, value: Value, dim: int, start: Any, end: Any, size: Dim) -> Value:
    """Slice ``value`` along ``dim`` from ``start`` to ``end``: ``size`` elements.

    nvFuser (0.2.36) takes a slice of one element for a broadcast dimension, and where two
    dimensions or more follow, its kernels read it from the start of the tensor. So one element is
    selected.

    :raises Refused: if the size is symbolic there, and may be one.
    """
    if (start, size) == (0, value.shape[dim]):
        return value
    before, after = value.shape[:dim], value.shape[dim + 1 :]
    if size == 1:
        rest = [n for n in range(value.ndim) if n != dim]
        return d.broadcast(pick(d, value, dim, start), [*before, 1, *after], rest)
    may_be_one = start != 0 and not isinstance(size, int)
    refuse(may_be_one and len(after) >= MERGED, "a slice that may be of one element")
    starts: list[Any] = [0] * value.ndim
    ends = d.shape(value.shape)
    starts[dim], ends[dim] = start, end
    where = {"start_indices": starts, "end_indices": ends}
    return d.op("slice", (value.dtype, [*before, size, *after]), value, **where)


def pick(d: Definition, value: Value, dim: int, index: int) -> Value:
    """Take the element ``index`` along ``dim``, which is removed."""
    shape = [n for axis, n in enumerate(value.shape) if axis != dim]
    return d.op("select", (value.dtype, shape), value, d.constant(index), dim=dim)
