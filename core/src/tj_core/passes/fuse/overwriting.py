"""Inputs that a region may overwrite, where its program writes their new values to them at the end.

A cache that gets one more row is not to be copied for that. A region may write to it if all that is
seen of the write is the new value, and if the region, and the program, do the same when they run
again on what it has written: after an error the program runs again, as it was acquired.

Rule table ``overwrites`` says of a symbol what it does to its first argument, as a function of the
call: ``"some"``, if the result has the elements of that but for some, and which these are and what
they become depends on the other arguments alone; ``"all"``, if none of its elements count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tj_core.analysis.alias import Storage
from tj_core.analysis.liveness import free_values
from tj_core.contract.rules import RuleTable
from tj_core.ir.proxy import Proxy, TensorProxy, may_overlap
from tj_core.ir.symbol import Symbol
from tj_core.ir.tags import NEW_VALUE_OF
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.ir.tree import leaves
from tj_core.passes.fuse.refusals import REFUSES, Refusals
from tj_core.verify.wellformed import same_metadata

__all__ = ["OVERWRITES", "Overwritable", "Overwrites", "Writes", "overwritable"]

OVERWRITES = "overwrites"
"""The table's name."""

Overwrites = Callable[[BoundSymbol], "Literal['some', 'all'] | None"]
"""A rule of the table; None: the result depends on all elements of the first argument."""


@dataclass(frozen=True, slots=True)
class Writes:
    """What a region may write: inputs, by the names of their new values.

    ``checks`` have to run before the program's first call.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[BoundSymbol, ...] = ()


@dataclass(frozen=True, slots=True)
class Overwritable:
    """Values that may be written to an input: the inputs, by the names of their new values.

    ``rules`` are those of the table. ``order`` has the places of the calls in the program, by what
    they make; ``units`` are these calls in the order in which they run, each region to be as one.
    ``reads`` counts the units that read a value.
    """

    inputs: Mapping[str, TensorProxy]
    rules: RuleTable[Overwrites]
    refusals: Refusals
    order: Mapping[str, int]
    units: Sequence[Sequence[BoundSymbol]] = ()
    reads: Mapping[str, int] = field(default_factory=dict)

    def among(self, units: Sequence[Sequence[BoundSymbol]]) -> Overwritable:
        """Where the program runs as ``units``."""
        reads = Counter(p.name for calls in units for p in free_values(calls))
        return replace(self, units=units, reads=reads)

    def writes(
        self, unit: int, returned: Sequence[Proxy], may: Callable[[TensorProxy], bool]
    ) -> Writes:
        """What the region that is ``unit`` may write of what it has ``returned``.

        ``may`` says of an input whether the executor writes to it.
        """
        candidates = [p for p in returned if p.name in self.inputs]
        if not candidates:
            return Writes()
        calls = self.units[unit]
        read = {p.name for p in free_values(calls)}
        written: dict[str, str] = {}
        for new in candidates:
            old = self.inputs[new.name]
            alone = {new.name: old.name}
            fits = old.name in read and self.reads[old.name] == 1 and may(old)
            if fits and not _seen(calls, returned, alone, self.rules):
                written |= alone
        while lost := _seen(calls, returned, written, self.rules):
            written = {name: old for name, old in written.items() if old not in lost}
        found: dict[str, str] = {}
        checks: list[BoundSymbol] = []
        for name, old_name in written.items():
            made = self.refusals.checks(self.overtaken(unit, self.order[name]))
            if made is not None:
                found[name] = old_name
                checks += made
        return Writes(found, tuple(checks))

    def overtaken(self, unit: int, place: int) -> Iterator[BoundSymbol]:
        """The calls of the program up to ``place`` that run in ``unit`` or later."""
        for calls in self.units[unit:]:
            for call in calls:
                if min((self.order.get(p.name, -1) for p in call.flat_outs), default=-1) <= place:
                    yield call


def overwritable(
    trace: Trace, tables: Mapping[str, RuleTable[Any]], others: Collection[Symbol] = frozenset()
) -> Overwritable | None:
    """What is known of ``trace`` before it has regions; None if nothing in it can be overwritten.

    ``tables`` are the session's, ``others`` the symbols that executors have claimed.
    """
    outputs = [p for p in leaves(trace.outputs) if isinstance(p, Proxy)]
    tagged = [p for p in outputs if NEW_VALUE_OF in p.tags]
    if OVERWRITES not in tables or REFUSES not in tables or not tagged:
        return None
    given = {p.name: p for p in trace.inputs}
    memory = Storage.of(trace).memory()
    returned = Counter(memory[p.name] for p in outputs)
    inputs = {}
    for p in tagged:
        old = given.get(str(p.tags[NEW_VALUE_OF]))
        if (
            isinstance(old, TensorProxy)
            and isinstance(p, TensorProxy)
            and same_metadata(old, p)
            and not may_overlap(old)
            and memory[p.name] == p.name
            and returned[p.name] == 1
            and not returned[old.name]
        ):
            inputs[p.name] = old
    if not inputs:
        return None
    order = {p.name: i for i, call in enumerate(trace.calls) for p in call.flat_outs}
    refusals = Refusals(trace, tables[REFUSES], others)
    return Overwritable(inputs, tables[OVERWRITES], refusals, order)


def _seen(
    calls: Sequence[BoundSymbol],
    returned: Iterable[Proxy],
    written: Mapping[str, str],
    rules: RuleTable[Overwrites],
) -> frozenset[str]:
    """The inputs in ``written`` whose old value would show when ``calls`` run again.

    ``written`` are inputs, by the names of their new values.
    """
    values = {name: _Old(frozenset([name]), name) for name in written.values()}
    lost: frozenset[str] = frozenset()
    for call in calls:
        made = _made(call, values, rules)
        for p in call.flat_outs:
            values[p.name] = made
            if p.name in written:  # from here on it is what the input is
                values[p.name] = _NEW
                if made.inputs and made.like != written[p.name]:
                    lost |= made.inputs
    return lost.union(*(values.get(p.name, _NEW).inputs for p in returned))


@dataclass(frozen=True, slots=True)
class _Old:
    """What a value has of old values of inputs: it depends on those of ``inputs``.

    ``like``, if given, is the only one, and the value has its elements, but for some that depend on
    none.
    """

    inputs: frozenset[str] = frozenset()
    like: str | None = None


_NEW = _Old()


def _made(call: BoundSymbol, values: Mapping[str, _Old], rules: RuleTable[Overwrites]) -> _Old:
    """What the results of ``call`` have."""
    given = [values.get(p.name, _NEW) for p in call.flat_args]
    known = _NEW.inputs.union(*(value.inputs for value in given))
    rule = rules.get(call.symbol) if known else None
    does = rule.value(call) if rule is not None else None
    if does is None or not (call.args and isinstance(call.args[0], Proxy)):
        return _Old(known)
    others = _NEW.inputs.union(*(value.inputs for value in given[1:]))
    if does == "all":
        return _Old(others)
    return _Old(known) if others else given[0]
