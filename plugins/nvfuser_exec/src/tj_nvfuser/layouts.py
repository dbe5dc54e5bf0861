"""Strides in nvFuser's form: an order of dimensions, and a contiguity flag for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tj_core.extend import Dim, SymDim, TensorProxy, same_size

from tj_nvfuser.refusal import Refused

__all__ = ["Layout", "dense_order", "layout_of"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Memory layout of a tensor.

    ``order``: for each dimension, the number of dimensions with smaller strides. ``contiguity``:
    for each dimension, from the largest stride to the smallest, True if there is no gap between it
    and the next inner one; None for a dimension of size 1 or stride 0.
    """

    order: tuple[int, ...]
    contiguity: tuple[bool | None, ...]


def layout_of(p: TensorProxy) -> Layout:
    """Compute the layout of ``p``.

    :raises Refused: if the order of its strides depends on the values of symbols.
    """
    ranked = _ranked(p)
    order = [0] * p.ndim
    contiguity: list[bool | None] = []
    for place, dim in enumerate(ranked):
        order[dim] = p.ndim - 1 - place
        contiguity.append(_contiguity(p, dim, ranked[place + 1 :]))
    return Layout(tuple(order), tuple(contiguity))


def dense_order(p: TensorProxy) -> tuple[int, ...]:
    """The stride order of ``p``, which must be dense.

    :raises Refused: if it has gaps or expanded dimensions.
    """
    layout, ranked = layout_of(p), _ranked(p)
    known = zip(layout.contiguity, ranked, strict=True)
    if not all(contiguous for contiguous, dim in known if p.shape[dim] != 1):
        raise Refused(f"{p.name} has gaps in memory")
    return layout.order


def _ranked(p: TensorProxy) -> list[int]:
    """Dimensions from the largest stride to the smallest; those
    with stride 0 keep their position.
    """
    spread = [dim for dim in range(p.ndim) if p.strides[dim] != 0]
    # Of equal strides, as beside a size of 1, the outer dimension stays first: `sort` is stable.
    spread.sort(key=lambda dim: -_hint(p.strides[dim]))
    # Hints are the sizes of one call; the order has to be that for the sizes of all others.
    for outer, inner in pairwise(spread):
        _in_order(p, outer, inner)
    for dim in range(p.ndim):
        if p.strides[dim] == 0:
            spread.insert(dim, dim)
    return spread


def _hint(n: Dim) -> int:
    if isinstance(n, int):
        return n
    if n.hint is None:
        raise Refused(f"the size {n} depends on data")
    return n.hint


def _in_order(p: TensorProxy, outer: int, inner: int) -> None:
    """Check that the stride of ``outer`` is at least that of ``inner`` for all values of symbols.

    :raises Refused: if that is not known.
    """
    a, b = p.strides[outer], p.strides[inner]
    if isinstance(a, int) and isinstance(b, int):
        return
    # No stride but 0 is less than 1, and none of 0 comes here.
    if b == 1 or _equal(a, b) or _equal(a, _times(b, p.shape[inner])):
        return
    raise Refused(f"the order of the strides of {p.name} depends on its sizes")


def _contiguity(p: TensorProxy, dim: int, inside: Sequence[int]) -> bool | None:
    if p.shape[dim] == 1 or p.strides[dim] == 0:
        return None
    inner = next((d for d in inside if p.shape[d] != 1 and p.strides[d] != 0), None)
    if inner is None:
        return p.strides[dim] == 1
    return _equal(p.strides[dim], _times(p.strides[inner], p.shape[inner]))


def _times(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return SymDim(f"({a})*({b})", _hint(a) * _hint(b))


def _equal(a: Dim, b: Dim) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return same_size(str(a), str(b))
