"""Operators that return their first argument with some or all of its elements replaced.

Rules of the core's table ``overwrites``: see `tj_core.passes.fuse.overwriting`.
"""

from __future__ import annotations

from typing import Literal

from tj_core.extend import OVERWRITES, BoundSymbol, Overwrites, RuleTable

__all__ = ["rules"]

SOME = (
    "clone.default", "diagonal_scatter.default", "index_copy.default", "index_fill.int_Scalar",
    "index_fill.int_Tensor", "masked_fill.Scalar", "masked_fill.Tensor", "masked_scatter.default",
    "scatter.src", "scatter.value", "select_scatter.default", "slice_scatter.default",
)  # fmt: skip

ALL = (
    "copy.default", "empty_like.default", "fill.Scalar", "fill.Tensor", "full_like.default",
    "new_empty.default", "new_full.default", "new_ones.default", "new_zeros.default",
    "ones_like.default", "zero.default", "zeros_like.default",
)  # fmt: skip

ACCUMULATING = {"index_put.default": 3, "put.default": 3}
"""Operators that may add to elements instead, with the position of ``accumulate``."""


def rules() -> RuleTable[Overwrites]:
    """Rules for PyTorch's operators in functional form."""
    table: RuleTable[Overwrites] = RuleTable(OVERWRITES)
    for name in SOME:
        table.set(f"aten.{name}", _some)
    for name in ALL:
        table.set(f"aten.{name}", _all)
    for name in ACCUMULATING:
        table.set(f"aten.{name}", _unless_it_adds)
    return table


def _some(call: BoundSymbol) -> Literal["some"]:
    return "some"


def _all(call: BoundSymbol) -> Literal["all"]:
    return "all"


def _unless_it_adds(call: BoundSymbol) -> Literal["some"] | None:
    place = ACCUMULATING[call.symbol.path]
    adds = call.args[place] if len(call.args) > place else dict(call.kwargs).get("accumulate")
    return None if adds else "some"
