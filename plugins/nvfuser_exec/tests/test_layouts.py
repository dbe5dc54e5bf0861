"""Strides as nvFuser describes them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tj_core.extend import Dim, SymDim, TensorProxy
from tj_nvfuser.layouts import dense_order, layout_of
from tj_nvfuser.refusal import Refused

S = SymDim("s0", 5)
T = SymDim("s1", 3)


def proxy(shape: Sequence[Dim], strides: Sequence[Dim]) -> TensorProxy:
    return TensorProxy("x", tuple(shape), tuple(strides))


FOUND = {
    "rows": ((4, 5), (5, 1), (1, 0), (True, True)),
    "columns": ((4, 5), (1, 4), (0, 1), (True, True)),
    "gaps": ((4, 5), (10, 2), (1, 0), (True, False)),
    "rows with gaps": ((4, 5), (8, 1), (1, 0), (False, True)),
    "one element": ((4, 1, 5), (5, 5, 1), (2, 1, 0), (True, None, True)),
    "spread": ((4, 3, 5), (5, 0, 1), (2, 1, 0), (True, None, True)),
    "a number": ((), (), (), ()),
    "channels last": ((2, 3, 4, 5), (60, 1, 15, 3), (3, 0, 2, 1), (True, True, True, True)),
    "a symbol": ((S, 4), (4, 1), (1, 0), (True, True)),
    "symbols": ((2, S, T), (SymDim("s0*s1", 15), T, 1), (2, 1, 0), (True, True, True)),
    "a symbol, as columns": ((S, T), (1, S), (0, 1), (True, True)),
    "a part of rows": ((S, 3), (T, 1), (1, 0), (False, True)),
}


@pytest.mark.parametrize("name", FOUND)
def test_layouts(name: str) -> None:
    shape, strides, order, contiguity = FOUND[name]
    layout = layout_of(proxy(shape, strides))
    assert (layout.order, layout.contiguity) == (order, contiguity)


@pytest.mark.parametrize("name", ["rows", "columns", "one element", "channels last", "symbols"])
def test_dense(name: str) -> None:
    shape, strides, order, _ = FOUND[name]
    assert dense_order(proxy(shape, strides)) == order


@pytest.mark.parametrize("name", ["gaps", "rows with gaps", "spread", "a part of rows"])
def test_gaps_are_refused(name: str) -> None:
    shape, strides, *_ = FOUND[name]
    with pytest.raises(Refused, match="gaps"):
        dense_order(proxy(shape, strides))


def test_an_order_that_depends_on_sizes_is_refused() -> None:
    with pytest.raises(Refused, match="depends on its sizes"):
        layout_of(proxy((4, 4), (S, T)))
