"""Calls that are cheap to recompute: elementwise operations, views, softmax.

Rule table ``recompute`` sets it for an operator, from plugins too: True or False. For others
PyTorch's tag ``pointwise`` decides.
"""

from __future__ import annotations

import torch
from tj_core.extend import BoundSymbol, RuleTable, Symbol, makes_views
from tj_torch.extend import resolve

__all__ = ["RECOMPUTE", "cheap", "rules"]

RECOMPUTE = "recompute"
"""Name of the rule table."""

_COPIES = ("_to_copy", "clone", "full", "full_like", "zeros_like", "arange", "zeros", "ones")
_ROWS = ("_softmax", "_log_softmax")
"""Operators that read their input a few times, as an elementwise chain does."""


def rules() -> RuleTable[bool]:
    """Make the table, with operators that are cheap and that PyTorch does not tag as pointwise."""
    table: RuleTable[bool] = RuleTable(RECOMPUTE, rule_type=bool)
    for name in (*_COPIES, *_ROWS):
        table.set(f"aten.{name}.default", True)
    table.set("aten.arange.start_step", True)
    return table


def cheap(call: BoundSymbol, known: RuleTable[bool]) -> bool:
    """Check that each part of ``call`` is a view, pointwise, or cheap by rule table ``known``."""
    said = known.of(call)
    if said is not None:
        return said.value
    if call.symbol.namespace == "aten" and (call.body is None or call.body.calls == ()):
        return _operator(call, known)
    if call.body is None:
        return False
    return all(_operator(part, known) for part in call.body.calls)


def _operator(call: BoundSymbol, known: RuleTable[bool]) -> bool:
    if makes_views(call):
        return True
    said = known.of(call)
    if said is not None:
        return said.value
    return call.symbol.namespace == "aten" and _pointwise(call.symbol)


def _pointwise(symbol: Symbol) -> bool:
    try:
        operator = resolve(symbol)
    except LookupError:
        return False
    return torch.Tag.pointwise in getattr(operator, "tags", ())
