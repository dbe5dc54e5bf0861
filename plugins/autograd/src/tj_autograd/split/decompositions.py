"""Forward calls that return what they save are decomposed, so that SPLIT sees what they compute.

``torch.f.augmented`` returns values that are nobody's but its backward's. Those that are cheap to
make of others need not be saved, which is decided value by value only where each has a call of its
own. A call that an executor takes whole stays whole.
"""

from __future__ import annotations

from typing import Any

from tj_core.extend import (
    AUGMENTED,
    BoundSymbol,
    Editor,
    PassContext,
    Replacement,
    RuleTable,
    Trace,
)

from tj_autograd.split.costs import Costs

__all__ = ["with_decompositions"]


def with_decompositions(trace: Trace, costs: Costs, context: PassContext) -> Trace:
    """``trace`` with the bodies of such calls in their places."""

    def rule(call: BoundSymbol, edit: Editor) -> Replacement | None:
        whole = call.symbol.variant != AUGMENTED or costs.taken(call)
        return None if whole or not edit.can_inline() else edit.inline()

    rules: RuleTable[Any] = RuleTable("open")
    rules.set("*", rule)
    return context.rewrite(trace, rules, into_bodies=False, into_regions=False)
