"""Calls replaced by their bodies, so that a transform finds the operators inside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_core.extend import BoundSymbol, CallEditor, PassContext, Replacement, RuleTable, Trace

__all__ = ["opened"]


def opened(trace: Trace, context: PassContext, wanted: Callable[[BoundSymbol], bool]) -> Trace:
    """``trace`` with the bodies of ``wanted`` calls in their places, where they can stand there."""

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        return edit.inline() if wanted(call) and edit.can_inline() else None

    rules = RuleTable[Any]("open")
    rules.set("*", rule)
    return context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)
