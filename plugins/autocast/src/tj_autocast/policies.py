"""Policies for single operations, in the place of PyTorch's: rule table ``autocast``.

A policy is a rule as those of `tj_core.extend.rewrite`. It is given a call under autocast, over
values that are not cast yet, and an editor, whose calls run outside of autocast. It returns what
takes the call's place, or None for PyTorch's policy. What it returns has the metadata that the call
has: Python may have read that while the program was captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Context,
    Editor,
    PassContext,
    PluginError,
    Replacement,
    Rule,
    RuleTable,
    Trace,
)
from tj_torch.extend import AUTOCAST, AUTOCAST_TABLE, CAST_CACHE, is_on

__all__ = ["Policy", "off", "policies", "with_policies"]

Policy = Callable[[BoundSymbol, Editor], Replacement | None]


def policies() -> RuleTable[Any]:
    """The table, empty: it says which plugin reads it, and what rules are."""
    return RuleTable(AUTOCAST_TABLE, rule_type=Callable)


def with_policies(trace: Trace, context: PassContext) -> Trace:
    """``trace`` with what policies make of calls under autocast; the same if there are none.

    :raises PluginError: if one returns something else than the call does.
    """
    table = context.tables[AUTOCAST_TABLE]
    if not len(table):
        return trace
    applied = {rule.key: replace(rule, value=_Applied(rule, trace.context)) for rule in table}
    rules: RuleTable[Any] = RuleTable(AUTOCAST_TABLE, applied)
    return context.rewrite(trace, rules, into_bodies=False, into_regions=False)


def off(context: Context, ambient: Context) -> Context:
    """``context`` without autocast, which is switched off where it is on around the program."""
    known = dict(ambient.items)
    items = ((k, None if k.startswith(AUTOCAST) else v) for k, v in context.items)
    return Context(tuple((k, v) for k, v in items if v is not None or known.get(k)))


class _Applied:
    """A policy as a rule for all calls, which looks only at those under autocast."""

    def __init__(self, rule: Rule[Policy], ambient: Context) -> None:
        self.rule, self.ambient = rule, ambient

    def __call__(self, call: BoundSymbol, edit: Editor) -> Replacement | None:
        """What takes the place of ``call``.

        :raises PluginError: if that returns something else.
        """
        if not is_on(call.context):
            return None
        plain = call.replace(
            context=off(call.context, self.ambient), tags=call.tags.without(CAST_CACHE.name)
        )
        made = self.rule.value(call, edit.of(plain))
        if made is not None:
            self.check(call, made)
        return made

    def check(self, call: BoundSymbol, made: Replacement) -> None:
        """Compare what ``made`` returns with what ``call`` does."""
        known = {p.name: p for c in made.calls for p in c.flat_outs}
        for out in call.flat_outs:
            value = made.values.get(out.name, known.get(out.name))
            if value is None or not out.same_meta(value):
                raise PluginError(
                    f"the autocast policy of plugin {self.rule.plugin!r} for {self.rule.key} "
                    f"returns {value} for {out.name}, which is {out} in the program: "
                    "Python may have read that",
                    source=call.source,
                )
