"""Calls that may refuse their arguments for the values these have, an index out of bounds say.

What comes before such a call in the program has happened then, what comes after it has not. Where a
region changes that order for what can be seen, the program asks beforehand.

Rule table ``refuses`` says of a symbol, as a function of the call, by which calls: those raise if
the call will. There are none for a call that never refuses a value; None is for one of which that
cannot be said.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.analysis.alias import makes_views
from tj_core.contract.rules import RuleTable
from tj_core.ir.proxy import NumberProxy, Proxy, TensorProxy
from tj_core.ir.substitution import substitution
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["REFUSES", "Refusals", "Refuses"]

REFUSES = "refuses"
"""The table's name."""

Refuses = Callable[[BoundSymbol], "Sequence[BoundSymbol] | None"]
"""A rule of the table."""

MOST_CALLS = 8
"""So many calls run again at the start of a program, at most, to know what one argument will be."""

MOST_ELEMENTS = 1 << 16
"""Of each of their results."""


@dataclass(frozen=True)
class Refusals:
    """What the ``rules`` of the table say of the calls of ``trace``.

    ``others`` are symbols that executors have claimed.
    """

    trace: Trace
    rules: RuleTable[Refuses]
    others: Collection[Symbol] = frozenset()

    @functools.cached_property
    def makers(self) -> Mapping[str, BoundSymbol | None]:
        """What makes each value of the program; None for its inputs."""
        inputs: dict[str, BoundSymbol | None] = dict.fromkeys(p.name for p in self.trace.inputs)
        return inputs | {p.name: c for c in self.trace.calls for p in c.flat_outs}

    def checks(self, calls: Iterable[BoundSymbol]) -> list[BoundSymbol] | None:
        """What raises at the start of the program if one of ``calls`` will; None if none can."""
        found: list[BoundSymbol] = []
        for call in calls:
            made = self.of(call)
            if made is None or not all(self.steps(check) is not None for check in made):
                return None
            found += made
        return found

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

    def steps(self, check: BoundSymbol) -> list[BoundSymbol] | None:
        """The calls that make the arguments of ``check`` of the program's inputs, last first.

        None if these are too many, or do more than that.
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
        """Whether nobody sees that ``call`` has run once more, and it takes no time."""
        small = all(map(_is_small, call.flat_outs))
        return small and call.effects.removable and call.symbol not in self.others

    def first(self, checks: Iterable[BoundSymbol], executor: str | None) -> list[BoundSymbol]:
        """What the program begins with where it begins with ``checks``, run by ``executor``."""
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
