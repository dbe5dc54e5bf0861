"""Calls that may refuse their arguments for the values these have, an index out of bounds say.

What comes before such a call in the program has happened then, what comes after it has not. Where a
region changes that order for what can be seen, the program asks beforehand.

Rule table ``refuses`` says of a symbol, as a function of the call, by which calls: those raise if
the call will. There are none for a call that never refuses a value; None is for one of which that
cannot be said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tj_core.analysis.alias import makes_views
from tj_core.contract.rules import RuleTable
from tj_core.ir.trace import BoundSymbol

__all__ = ["REFUSES", "Refusals", "Refuses"]

REFUSES = "refuses"
"""The table's name."""

Refuses = Callable[[BoundSymbol], "Sequence[BoundSymbol] | None"]
"""A rule of the table."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """What the ``rules`` of the table say of the calls of a program with ``inputs``."""

    rules: RuleTable[Refuses] = field(default_factory=lambda: RuleTable(REFUSES))
    inputs: frozenset[str] = frozenset()

    def checks(self, calls: Iterable[BoundSymbol]) -> list[BoundSymbol] | None:
        """What raises at the start of the program if one of ``calls`` will; None if none can."""
        found: list[BoundSymbol] = []
        for call in calls:
            made = self.of(call)
            if made is None or not all(self.is_known(check) for check in made):
                return None
            found += made
        return found

    def is_known(self, check: BoundSymbol) -> bool:
        """Whether ``check`` can run at the start."""
        return all(p.name in self.inputs for p in check.flat_args)

    def of(self, call: BoundSymbol) -> Sequence[BoundSymbol] | None:
        """What the rules say of ``call``, or of all calls of its body."""
        if makes_views(call):
            return ()
        rule = self.rules.get(call.symbol)
        if rule is not None:
            return rule.value(call)
        if call.body is None or any(self.of(inner) != () for inner in call.body.calls):
            return None
        return ()
