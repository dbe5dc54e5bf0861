"""Inputs that a region may overwrite, since the program copies their new values back at the end.

Without this, a cache that gets one more row would be copied. A region may write to such an input if
only the new value is visible afterwards, and if region and program are idempotent: a further run on
the written input gives the same. This is needed because after an error the program runs again, as
it was acquired. Where no call of the region, or after it, refuses any value, such an error does not
come, and the region may write to other inputs, too, if its executor can (`Fusion.consumes`).

A rule of table ``overwrites`` is a function from a call to how its result depends on the first
argument. ``"some"``: the result is a copy of it with some elements replaced, and their places and
new values depend on the other arguments alone. ``"all"``: the result depends on none of its
elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from tj_core.analysis.alias import Storage
from tj_core.analysis.liveness import free_values
from tj_core.ir.proxy import Proxy, TensorProxy, may_overlap
from tj_core.ir.tags import NEW_VALUE_OF
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.ir.tree import leaves
from tj_core.passes.fuse.refusals import REFUSES, Refusals
from tj_core.verify.wellformed import same_metadata

if TYPE_CHECKING:
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.symbol import Symbol

__all__ = ["OVERWRITES", "Overwritable", "Overwrites", "Writes", "overwritable"]

OVERWRITES = "overwrites"
"""Name of the rule table."""

Overwrites = Callable[[BoundSymbol], "Literal['some', 'all'] | None"]
"""A rule of the table; None: the result depends on all elements of the first argument."""


@dataclass(frozen=True, slots=True)
class Writes:
    """The inputs that a region may overwrite, by the names of their new values.

    ``checks`` must run before the program's first call. With ``consumes``, a further run of the
    program would not give the same.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[BoundSymbol, ...] = ()
    consumes: bool = False


@dataclass(frozen=True, slots=True)
class Overwritable:
    """The inputs of a program that may be overwritten, by the names of their new values.

    ``rules`` is the table ``overwrites``. ``order`` has the index of the call behind each value;
    ``units`` are the calls in the order in which they run, those of a planned region together.
    ``reads`` has the indices of the units that read a value.
    """

    inputs: Mapping[str, TensorProxy]
    rules: RuleTable[Overwrites]
    refusals: Refusals
    order: Mapping[str, int]
    units: Sequence[Sequence[BoundSymbol]] = ()
    reads: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def among(self, units: Sequence[Sequence[BoundSymbol]]) -> Overwritable:
        """A copy for a program that runs as ``units``."""
        reads: dict[str, list[int]] = {}
        for i, calls in enumerate(units):
            for p in free_values(calls):
                reads.setdefault(p.name, []).append(i)
        return replace(self, units=units, reads=reads)

    def writes(
        self,
        unit: int,
        returned: Sequence[Proxy],
        may: Callable[[TensorProxy], bool],
        *,
        consumes: bool = False,
    ) -> Writes:
        """The inputs that the region with index ``unit`` may overwrite by values it ``returned``.

        ``may`` returns True for an input that the executor can overwrite. For ``consumes`` see
        `Fusion`.
        """
        candidates = [p for p in returned if p.name in self.inputs]
        if not candidates:
            return Writes()
        calls = self.units[unit]
        read = {p.name for p in free_values(calls)}
        fitting: dict[str, str] = {}
        for new in candidates:
            old = self.inputs[new.name]
            if old.name in read and self.is_last(unit, old.name) and may(old):
                fitting[new.name] = old.name
        once = {new: old for new, old in fitting.items() if len(self.reads[old]) == 1}
        whole = not any(map(self.scatters, calls))
        again = len(once) == len(fitting) and not _seen(calls, returned, fitting, self.rules)
        if consumes and whole and not again:
            made = self.refusals.checks(call for later in self.units[unit:] for call in later)
            if made is not None:
                return Writes(fitting, tuple(made), consumes=True)
        return self.same_again(unit, returned, once)

    def is_last(self, unit: int, name: str) -> bool:
        """Test if no call after ``unit`` reads the value ``name``, and none before aliases it."""
        *earlier, last = self.reads[name]
        views = (c for i in earlier for c in self.units[i] if c.effects.aliases)
        return last == unit and not any(p.name == name for c in views for p in c.flat_args)

    def scatters(self, call: BoundSymbol) -> bool:
        """Test for a call that replaces or changes some elements of its first argument.

        Executors compute such calls in place, of which they may still read other elements.
        """
        rule = self.rules.get(call.symbol)
        return rule is not None and len(call.flat_args) > 1 and rule.value(call) != "all"

    def same_again(
        self, unit: int, returned: Sequence[Proxy], fitting: Mapping[str, str]
    ) -> Writes:
        """The inputs in ``fitting`` whose overwriting changes no second run of the program."""
        calls = self.units[unit]
        written = {
            name: old
            for name, old in fitting.items()
            if not _seen(calls, returned, {name: old}, self.rules)
        }
        # Again: the new value of an input that is left out depends on old values of the others.
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
    """The overwritable inputs of ``trace``, which has no regions yet; None if there are none.

    ``tables`` are the session's rule tables, ``others`` the symbols that executors have claimed.
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
    """The inputs in ``written`` whose overwriting would change a second run of ``calls``.

    ``written`` are inputs, by the names of their new values.
    """
    values = {name: _Old(frozenset([name]), name) for name in written.values()}
    lost: frozenset[str] = frozenset()
    for call in calls:
        made = _made(call, values, rules)
        for p in call.flat_outs:
            values[p.name] = made
            if p.name in written:  # from here on the input has this value
                values[p.name] = _NEW
                if made.inputs and made.like != written[p.name]:
                    lost |= made.inputs
    return lost.union(*(values.get(p.name, _NEW).inputs for p in returned))


@dataclass(frozen=True, slots=True)
class _Old:
    """The dependence of a value on old values of ``inputs``.

    ``like``, if given, is the only such input; the value is a copy of it with some elements
    replaced that depend on no old value.
    """

    inputs: frozenset[str] = frozenset()
    like: str | None = None


_NEW = _Old()


def _made(call: BoundSymbol, values: Mapping[str, _Old], rules: RuleTable[Overwrites]) -> _Old:
    """The dependence of the results of ``call`` on old values."""
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
