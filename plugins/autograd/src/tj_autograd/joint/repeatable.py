"""Calls that keep their order and may run again all the same, as a gather of an unwritten input.

Rule table ``repeatable`` says so of an operator, from plugins: `ITSELF`, or `WITH_ARGUMENT` of one
that waits for what another has started. The two run again together, or neither does: a value that
is still being written is not saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tj_core.extend import BoundSymbol, RuleTable

__all__ = ["ITSELF", "REPEATABLE", "WITH_ARGUMENT", "Repeats", "rules", "together"]

REPEATABLE = "repeatable"
"""Name of the rule table."""

ITSELF = "itself"
"""The call may run again."""

WITH_ARGUMENT = "with its argument"
"""The call may run again together with the call that makes its argument, if that may."""

Repeats = Callable[[BoundSymbol], "str | None"]
"""The rule of a call, or None."""


def rules() -> RuleTable[str]:
    """Make the table; plugins know the operators."""
    return RuleTable(REPEATABLE, rule_type=str)


def together(calls: Iterable[BoundSymbol], repeats: Repeats) -> dict[str, tuple[BoundSymbol, ...]]:
    """Map the label of each ordered call that may run again to the calls that run with it.

    The first is the one that may by itself.
    """
    units: dict[str, list[BoundSymbol]] = {}
    made: dict[str, list[BoundSymbol]] = {}
    for call in calls:
        said = repeats(call) if call.effects.ordered else None
        unit: list[BoundSymbol] | None = None
        if said == ITSELF:
            unit = []
        elif said == WITH_ARGUMENT and len(call.flat_args) == 1:
            unit = made.get(call.flat_args[0].name)
        if unit is not None:
            unit.append(call)
            units[call.label] = unit
            if said == ITSELF:
                made.update((p.name, unit) for p in call.flat_outs)
    return {label: tuple(unit) for label, unit in units.items()}
