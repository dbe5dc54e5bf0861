"""Inductor's propagation of indices through integers: of those alone that their data type holds.

Inductor computes what a program makes of an `arange` as an expression of the loop's variables
(torch/_inductor/index_propagation.py), in whole numbers of any size. It has no overflow, and no
rounding to the data types in between: ``torch.arange(300).to(torch.uint8).long()`` counts to 299.
Where values may not fit, they are computed as other values are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch

from tj_inductor.adapter.names import PLACES
from tj_inductor.adapter.replacing import Replacement

__all__ = ["exact_propagation"]

BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Whole numbers of so many bits are exact in these data types."""

LARGEST = 1 << 30
"""Assumed size of a dimension that is a symbol without an upper bound: about 10^9 elements."""

CONVERSIONS = frozenset({"constant", "identity", "index_expr", "to_dtype", "value_expr"})
"""Functions that make a float of a whole number; others may make -0.0, which no integer is."""


def _exact(own: Callable[..., Any]) -> Callable[..., Any]:
    """``propagate_sympy``, which computes a value like others where its data type may not hold it.

    ``own`` is Inductor's method.
    """

    def propagate_sympy(self: Any, name: str, args: Any, kwargs: Any) -> Any:
        made = own(self, name, args, kwargs)
        if not made.is_symbolic or _is_held(self, name, made.value):
            return made
        return self.fallback(name, args, kwargs)

    return propagate_sympy


def _is_held(handler: Any, name: str, value: Any) -> bool:
    """Check that the data type of the expression ``value`` holds its whole range."""
    dtype = value.dtype
    # Constants are wrapped by Inductor; its own indices are within memory.
    if value.is_constant() or (name == "index_expr" and dtype == torch.int64):
        return True
    if dtype == torch.bool:
        return False
    if dtype.is_floating_point:
        if name not in CONVERSIONS or dtype not in BITS:
            return False
        lower, upper = -(1 << BITS[dtype]), 1 << BITS[dtype]
    else:
        lower, upper = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    found = _bounds(handler, value.expr)
    return bool(found.lower >= lower and found.upper <= upper)


def _bounds(handler: Any, expr: Any) -> Any:
    """The range of ``expr``, with `LARGEST` for sizes that have no upper bound."""
    from tj_inductor.adapter.names import ValueRanges, bound_sympy

    known = dict(handler.var_to_range)
    for symbol, size in handler.indirect_var_ranges.items():
        known[symbol] = ValueRanges(0, bound_sympy(sympy.sympify(size), known).upper - 1)
    bounded = {
        symbol: ValueRanges(r.lower, min(r.upper, LARGEST)) if symbol in expr.free_symbols else r
        for symbol, r in known.items()
    }
    return bound_sympy(expr, bounded)


exact_propagation = Replacement(PLACES, "IndexPropagation", "propagate_sympy", _exact).block
"""A block in which only what is exact is propagated, in all threads."""
