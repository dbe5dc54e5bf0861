"""Inlining of operations that only call their one subprogram; the subprogram's context is kept.

Rule table ``wiring`` of tj-torch says which operations these are.
"""

from __future__ import annotations

from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    PassContext,
    Replacement,
    RuleTable,
    Stage,
    Trace,
    Transform,
)
from tj_torch.extend import WIRING

__all__ = ["inline_calls"]


def inline_calls() -> Transform:
    """Make the transform that inlines such subprograms.

    Each call in them is then differentiated by itself.
    """
    return Transform("inline-calls", _apply, Stage.ACQUIRED, priority=90, falls_back=True)


def _apply(trace: Trace, context: PassContext) -> Trace:
    rules: RuleTable[Any] = RuleTable("inline")
    for rule in context.tables[WIRING]:
        if rule.value.once:
            rules.set(rule.key, _inlined)
    while True:
        # Inside subprograms of other operations gradients are left to PyTorch's autograd.
        after = context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)
        if after is trace:
            return trace
        trace = after


def _inlined(call: BoundSymbol, edit: CallEditor) -> Replacement:
    return edit.inline_subprogram()
