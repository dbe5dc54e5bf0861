"""Decompositions before SPLIT, so that it can save or recompute each value by itself.

``torch.f.augmented`` returns values that its backward alone reads. Those that are cheap to compute
from others need not be saved, which is decided value by value once each has a call of its own. A
call that an executor takes whole stays whole.

An executor that fuses may ask for a decomposition (`Executor.decompositions`): of a softmax, the
maximum and the sum are saved then, and not all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Executor,
    PassContext,
    Replacement,
    RuleTable,
    Trace,
)
from tj_core.internal import AUGMENTED, cse

if TYPE_CHECKING:
    from tj_autograd.split.costs import Costs

__all__ = ["with_decompositions"]


def with_decompositions(
    trace: Trace, costs: Costs, context: PassContext, *, merge: bool = True
) -> Trace:
    """Replace augmented calls in ``trace`` by their bodies, and calls that executors decompose.

    With ``merge``, equal calls become one after an executor's decomposition: two softmaxes of one
    value share a maximum. It is off where the backward is several programs, which share no calls.
    """

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        whole = call.symbol.variant != AUGMENTED or costs.taken(call)
        return None if whole or not edit.can_inline() else edit.inline()

    rules: RuleTable[Any] = RuleTable("open")
    rules.set("*", rule)
    trace = context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)
    decomposed = _for_executors(trace, context)
    return cse(decomposed, context.tags) if merge and decomposed is not trace else decomposed


def _for_executors(trace: Trace, context: PassContext) -> Trace:
    """Apply the decompositions of executors that fuse, to calls in bodies too."""
    tables = [(e, e.decompositions) for e in context.executors if e.decompositions is not None]
    for executor, table in tables:

        def wanted(call: BoundSymbol, executor: Executor = executor, table: Any = table) -> bool:
            return table.get(call.symbol) is not None and executor.takes_into_regions(call)

        trace = _opened(trace, wanted, context)
        trace = context.rewrite(
            trace, _of(table, wanted), into_bodies=False, into_subprograms=False
        )
    return trace


def _opened(trace: Trace, wanted: Callable[[BoundSymbol], bool], context: PassContext) -> Trace:
    """Inline, level by level, the bodies of calls that hold a wanted call."""

    def holds(call: BoundSymbol) -> bool:
        inner = call.body.calls if call.body is not None else ()
        return any(wanted(c) or holds(c) for c in inner)

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        free = call.executor is None and not call.effects.ordered and edit.can_inline()
        return edit.inline() if free and holds(call) else None

    rules: RuleTable[Any] = RuleTable("open")
    rules.set("*", rule)
    while (
        after := context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)
    ) != trace:
        trace = after
    return trace


def _of(table: RuleTable[Any], wanted: Callable[[BoundSymbol], bool]) -> RuleTable[Any]:
    """The rules of ``table``, restricted to the calls that are wanted."""

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        if call.executor is not None or not wanted(call):
            return None
        made: Replacement | None = table.require(call).value(call, edit)
        return made

    rules: RuleTable[Any] = RuleTable("decompose")
    rules.set("*", rule)
    return rules
