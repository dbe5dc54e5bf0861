"""Calls are decomposed, so that SPLIT sees what they compute.

``torch.f.augmented`` returns values that are nobody's but its backward's. Those that are cheap to
make of others need not be saved, which is decided value by value only where each has a call of its
own. A call that an executor takes whole stays whole.

An executor that fuses says what it would rather see in the place of a call
(`Executor.decompositions`): of a softmax, its maximum and its sum are saved, and not all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_core.extend import (
    AUGMENTED,
    BoundSymbol,
    Editor,
    Executor,
    PassContext,
    Replacement,
    RuleTable,
    Trace,
    cse,
)

from tj_autograd.split.costs import Costs

__all__ = ["with_decompositions"]


def with_decompositions(
    trace: Trace, costs: Costs, context: PassContext, *, merge: bool = True
) -> Trace:
    """``trace`` with the bodies of such calls in their places.

    Where an executor decomposes calls, and with ``merge``, equal ones become one: two softmaxes of
    one value have one maximum. Not where the backward is several programs, which share no calls.
    """

    def rule(call: BoundSymbol, edit: Editor) -> Replacement | None:
        whole = call.symbol.variant != AUGMENTED or costs.taken(call)
        return None if whole or not edit.can_inline() else edit.inline()

    rules: RuleTable[Any] = RuleTable("open")
    rules.set("*", rule)
    trace = context.rewrite(trace, rules, into_bodies=False, into_regions=False)
    decomposed = _for_executors(trace, context)
    return cse(decomposed, context.tags) if merge and decomposed is not trace else decomposed


def _for_executors(trace: Trace, context: PassContext) -> Trace:
    """``trace`` with what executors that fuse want in the place of calls, wherever these stand."""
    tables = [(e, e.decompositions) for e in context.executors if e.decompositions is not None]
    for executor, table in tables:

        def wanted(call: BoundSymbol, executor: Executor = executor, table: Any = table) -> bool:
            return table.get(call.symbol) is not None and executor.fuses(call)

        trace = _opened(trace, wanted, context)
        trace = context.rewrite(trace, _of(table, wanted), into_bodies=False, into_regions=False)
    return trace


def _opened(trace: Trace, wanted: Callable[[BoundSymbol], bool], context: PassContext) -> Trace:
    """``trace`` with the bodies of calls that have a wanted call inside in their places."""

    def holds(call: BoundSymbol) -> bool:
        inner = call.body.calls if call.body is not None else ()
        return any(wanted(c) or holds(c) for c in inner)

    def rule(call: BoundSymbol, edit: Editor) -> Replacement | None:
        free = call.executor is None and not call.effects.ordered and edit.can_inline()
        return edit.inline() if free and holds(call) else None

    rules: RuleTable[Any] = RuleTable("open")
    rules.set("*", rule)
    while (after := context.rewrite(trace, rules, into_bodies=False, into_regions=False)) != trace:
        trace = after
    return trace


def _of(table: RuleTable[Any], wanted: Callable[[BoundSymbol], bool]) -> RuleTable[Any]:
    """The rules of ``table``, for the calls that are wanted."""

    def rule(call: BoundSymbol, edit: Editor) -> Replacement | None:
        if call.executor is not None or not wanted(call):
            return None
        made: Replacement | None = table.require(call).value(call, edit)
        return made

    rules: RuleTable[Any] = RuleTable("decompose")
    rules.set("*", rule)
    return rules
