"""Policies for single operations, instead of PyTorch's: rule table ``autocast``.

A policy is a rule as for `tj_core.extend.rewrite`. It gets a call under autocast, whose arguments
are not cast yet, and an editor that makes calls outside of autocast. It returns the replacement of
the call, or None for PyTorch's policy. The replacement must have the metadata of the call: Python
may have read that during capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Context,
    PassContext,
    PluginError,
    Replacement,
    Rule,
    RuleTable,
    Trace,
)
from tj_torch.extend import AUTOCAST, is_on

from tj_autocast.notes import CAST_CACHE

__all__ = ["Policy", "off", "policies", "with_policies"]

Policy = Callable[[BoundSymbol, CallEditor], Replacement | None]

TABLE = "autocast"
"""The table's name."""


def policies() -> RuleTable[Any]:
    """Make the table, empty, with the type of its rules."""
    return RuleTable(TABLE, rule_type=Callable)


def with_policies(trace: Trace, context: PassContext) -> Trace:
    """Apply the policies to calls of ``trace`` under autocast; return ``trace`` if there are none.

    :raises PluginError: if a replacement has other metadata than the call.
    """
    table = context.tables[TABLE]
    # Without a policy, a pass over the program would do nothing.
    if not len(table):
        return trace
    applied = {rule.key: replace(rule, value=_Applied(rule, trace.context)) for rule in table}
    rules: RuleTable[Any] = RuleTable(TABLE, applied)
    return context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)


def off(context: Context, ambient: Context) -> Context:
    """``context`` without autocast; explicitly off where it is on
    around the program (``ambient``).
    """
    known = dict(ambient.items)
    items = ((k, None if k.startswith(AUTOCAST) else v) for k, v in context.items)
    return Context(tuple((k, v) for k, v in items if v is not None or known.get(k)))


class _Applied:
    """A policy as a rule for all calls; it skips those outside of autocast."""

    def __init__(self, rule: Rule[Policy], ambient: Context) -> None:
        self.rule, self.ambient = rule, ambient

    def __call__(self, call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        """Make the replacement of ``call``.

        :raises PluginError: if its metadata is not that of the call.
        """
        if not is_on(call.context):
            return None
        # Calls that the policy makes inherit the context: under autocast they would be cast again.
        plain = call.replace(
            context=off(call.context, self.ambient), tags=call.tags.without(CAST_CACHE.name)
        )
        made = self.rule.value(call, edit.of(plain))
        if made is not None:
            self.check(call, made)
        return made

    def check(self, call: BoundSymbol, made: Replacement) -> None:
        """Compare the metadata of ``made`` with that of ``call``."""
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
