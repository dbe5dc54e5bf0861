"""Calls that may raise because of their arguments' values, such as an index out of bounds.

At such an error, the writes of earlier calls have happened, and those of later calls have not. If a
region changes this order visibly, the program runs checks at its start.

A rule of table ``refuses`` is a function from a call to its checks: calls that raise if the call
would. It returns an empty sequence for a call that never raises because of a value, and None if
that is unknown.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.analysis.alias import makes_views
from tj_core.ir.proxy import NumberProxy, Proxy, TensorProxy
from tj_core.ir.substitution import substitution
from tj_core.ir.trace import BoundSymbol, Trace

if TYPE_CHECKING:
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.symbol import Symbol

__all__ = ["REFUSES", "Refusals", "Refuses"]

REFUSES = "refuses"
"""Name of the rule table."""

Refuses = Callable[[BoundSymbol], "Sequence[BoundSymbol] | None"]
"""A rule of the table."""

MOST_CALLS = 8
"""Most calls that run again at the start of a program to compute one check's arguments."""

MOST_ELEMENTS = 1 << 16
"""Most elements of each result of such a call."""


@dataclass(frozen=True)
class Refusals:
    """The checks for calls of ``trace``, by the ``rules`` of the table.

    ``others`` are symbols that executors have claimed.
    """

    trace: Trace
    rules: RuleTable[Refuses]
    others: Collection[Symbol] = frozenset()

    @functools.cached_property
    def makers(self) -> Mapping[str, BoundSymbol | None]:
        """The call behind each value of the program; None for inputs."""
        inputs: dict[str, BoundSymbol | None] = dict.fromkeys(p.name for p in self.trace.inputs)
        return inputs | {p.name: c for c in self.trace.calls for p in c.flat_outs}

    def checks(self, calls: Iterable[BoundSymbol]) -> list[BoundSymbol] | None:
        """Checks, for the start of the program, that raise if one of ``calls`` will.

        None if there is a call without known checks, or a check that cannot run so early.
        """
        found: list[BoundSymbol] = []
        for call in calls:
            made = self.of(call)
            if made is None or not all(self.steps(check) is not None for check in made):
                return None
            found += made
        return found

    def of(self, call: BoundSymbol) -> Sequence[BoundSymbol] | None:
        """The checks of ``call`` by its rule; none if no call of its body needs one; else None."""
        if makes_views(call):
            return ()
        rule = self.rules.get(call.symbol)
        if rule is not None:
            return rule.value(call)
        if call.body is None or any(self.of(inner) != () for inner in call.body.calls):
            return None
        return ()

    def steps(self, check: BoundSymbol) -> list[BoundSymbol] | None:
        """The calls that compute the arguments of ``check`` from the program's inputs, last first.

        None if there are too many, or one of them must not run twice.
        """
        found: dict[str, BoundSymbol] = {}
        todo = [p.name for p in check.flat_args]
        while todo:
            maker = self.makers[todo.pop()]
            if maker is None or maker.label in found:
                continue
            if not self.may_run_twice(maker) or len(found) == MOST_CALLS:
                return None
            found[maker.label] = maker
            todo += [p.name for p in maker.flat_args]
        return list(found.values())

    def may_run_twice(self, call: BoundSymbol) -> bool:
        """Test for a call that may run once more unnoticed, and is cheap."""
        small = all(map(_is_small, call.flat_outs))
        return small and call.effects.removable and call.symbol not in self.others

    def first(self, checks: Iterable[BoundSymbol], executor: str | None) -> list[BoundSymbol]:
        """The first calls of the program: ``checks``, run by ``executor``, and their arguments'."""
        distinct = {(c.symbol, repr((c.args, c.kwargs))): c for c in checks}
        needed = {step.label for check in distinct.values() for step in self.steps(check) or ()}
        fresh = self.trace.namer() if needed else str
        again: dict[str, Proxy] = {}
        made: list[BoundSymbol] = []
        for call in self.trace.calls if needed else ():
            if call.label in needed:
                again |= {p.name: p.replace(name=fresh(p.name)) for p in call.flat_outs}
                made.append(call.map_proxies(substitution(again)))
        rest = (c.map_proxies(substitution(again)) for c in distinct.values())
        return [*made, *(check.replace(executor=executor) for check in rest)]


def _is_small(p: Any) -> bool:
    if isinstance(p, NumberProxy):
        return True
    if not isinstance(p, TensorProxy):
        return False
    sizes = [n for n in p.shape if isinstance(n, int)]
    return len(sizes) == len(p.shape) and math.prod(sizes) <= MOST_ELEMENTS
