"""Which PyTorch operations cost next to nothing to run again: elementwise ones, views, softmax."""

from __future__ import annotations

import torch
from tj_core.extend import BoundSymbol, Symbol, makes_views
from tj_torch.extend import resolve

__all__ = ["cheap"]

COPIES = frozenset(
    f"{name}.default" for name in ("_to_copy", "clone", "full", "full_like", "zeros_like")
) | frozenset(("arange.default", "arange.start_step", "zeros.default", "ones.default"))
"""Operators that are cheap, and that PyTorch does not tag as elementwise."""

ROWS = frozenset(("_softmax.default", "_log_softmax.default"))
"""Operators that pass over their input a few times, as an elementwise chain does."""


def cheap(call: BoundSymbol) -> bool:
    """Whether all that ``call`` does is elementwise or a view."""
    if call.symbol.namespace == "aten" and (call.body is None or call.body.calls == ()):
        return _operator(call)
    if call.body is None:
        return False
    return all(map(_operator, call.body.calls))


def _operator(call: BoundSymbol) -> bool:
    if makes_views(call):
        return True
    if call.symbol.namespace != "aten":
        return False
    return call.symbol.name in COPIES | ROWS or _pointwise(call.symbol)


def _pointwise(symbol: Symbol) -> bool:
    try:
        operator = resolve(symbol)
    except LookupError:
        return False
    return torch.Tag.pointwise in getattr(operator, "tags", ())
