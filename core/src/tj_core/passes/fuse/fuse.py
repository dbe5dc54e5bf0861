"""The fusion pass: replace groups of calls by calls of regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tj_core.analysis.liveness import live_calls, value_names
from tj_core.edit.editor import TraceEditor
from tj_core.edit.subprograms import map_programs
from tj_core.ir.proxy import size_hints
from tj_core.ir.trace import BoundSymbol, PassRecord, Trace
from tj_core.passes.fuse.layouts import Choice, Layouts
from tj_core.passes.fuse.overwriting import Overwritable, overwritable
from tj_core.passes.fuse.plan import Fusers, Plan, plan
from tj_core.passes.fuse.regions import Facts, FusedCall, region_calls

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor
    from tj_core.contract.fusion import FusionRegion
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.tags import TagRegistry
    from tj_core.passes.claim_record import ClaimRecord

__all__ = ["FusedTrace", "fuse", "with_regions"]


@dataclass(frozen=True, slots=True)
class FusedTrace:
    """A trace with regions, each with the symbol of its calls.

    ``taken`` are the inputs, by name, that the trace takes with chosen strides; all others come
    with the declared strides. ``members`` maps the label of a call to the symbol of its region.
    """

    trace: Trace
    regions: tuple[tuple[Symbol, FusionRegion], ...] = ()
    taken: Mapping[str, Choice] = field(default_factory=dict)
    members: Mapping[str, Symbol] = field(default_factory=dict)


def fuse(
    trace: Trace,
    executors: Sequence[Executor],
    tags: TagRegistry,
    implementations: dict[Symbol, Callable[..., Any]],
    hosted: frozenset[Symbol],
    layouts: Layouts,
    tables: Mapping[str, RuleTable[Any]],
    planned: Plan | None = None,
    *,
    all_calls: bool = False,
) -> FusedTrace:
    """The claimed ``trace`` with a call for each region.

    ``implementations`` are the functions of claimed symbols, ``hosted`` the symbols that may stand
    in regions of other executors. ``layouts`` are of the inputs and outputs, ``tables`` the
    session's rule tables. ``planned`` is the plan of ``trace``, if it has been made. With
    ``all_calls``, unused calls are kept, outside of regions.
    """
    fusers = Fusers.of(executors, hosted)
    if not fusers.executors:
        return FusedTrace(trace)
    single = next((e.name for e in executors if e.fallback), None)
    writable = overwritable(trace, tables, implementations.keys())
    made_before = None if all_calls else planned
    pass_ = _Pass(
        fusers, implementations, single, tags, {}, {}, layouts, writable, made_before, all_calls
    )
    taken = pass_.taken(trace)
    pass_ = replace(pass_, layouts=replace(layouts, chosen=taken))
    made = pass_.program(trace, PassRecord("fuse"))
    return FusedTrace(made, tuple(pass_.found.items()), taken, pass_.members)


def with_regions(records: Sequence[ClaimRecord], fused: FusedTrace) -> tuple[ClaimRecord, ...]:
    """``records`` with the field ``fused`` set for calls in regions."""

    def region(record: ClaimRecord) -> Symbol | None:
        found = fused.members.get(record.call)
        return found if found is not None and found.namespace == record.executor else None

    return tuple(replace(record, fused=region(record)) for record in records)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One run of the pass.

    ``single`` is the executor of calls outside of regions, ``found`` are the regions by symbol,
    ``members`` the symbols of regions by label of call. ``layouts``, ``overwritable`` and
    ``planned`` are for the outermost program.
    """

    fusers: Fusers
    implementations: dict[Symbol, Callable[..., Any]]
    single: str | None
    tags: TagRegistry
    found: dict[Symbol, FusionRegion]
    members: dict[str, Symbol]
    layouts: Layouts
    overwritable: Overwritable | None
    planned: Plan | None
    all_calls: bool = False

    def program(self, trace: Trace, record: PassRecord | None = None) -> Trace:
        editor = TraceEditor(trace, self.tags)
        outermost = record is not None
        layouts = self.layouts if outermost else Layouts()
        writable = self.overwritable if outermost else None
        planned = self.planned if outermost else None
        for unit in self.calls(trace, layouts, writable, planned):
            if isinstance(unit, FusedCall):
                self.found.setdefault(unit.call.symbol, unit.region)
                for label in unit.members:
                    self.members.setdefault(label, unit.call.symbol)
                editor.changed(unit.call, unit.call.symbol.qualname, unit.call.executor or "")
                editor.append(unit.call)
            else:
                editor.append(self.alone(unit))
        return editor.done(record)

    def calls(
        self,
        trace: Trace,
        layouts: Layouts,
        writable: Overwritable | None,
        planned: Plan | None,
    ) -> list[FusedCall | BoundSymbol]:
        if planned is None:
            calls = self.unneeded_alone(trace) if self.all_calls else trace.calls
            planned = plan(calls, self.fusers)
        executors = self.fusers.executors
        facts = Facts(
            trace.language,
            self.implementations,
            executors,
            layouts,
            writable,
            self.single,
            self.all_calls,
        )
        return region_calls(planned.units, planned.views, trace.outputs, facts)

    def unneeded_alone(self, trace: Trace) -> tuple[BoundSymbol, ...]:
        """The calls of ``trace``, with unused calls assigned to the single executor.

        A region would leave out such a call, or raise another error than the call.
        """
        needed = {*live_calls(trace.calls, trace.outputs, _stays)}
        return tuple(
            call if place in needed else self.alone(call) for place, call in enumerate(trace.calls)
        )

    def taken(self, trace: Trace) -> dict[str, Choice]:
        """The inputs with chosen strides that only regions of the choosing executor read."""
        chosen = dict(self.layouts.chosen)
        if not chosen:
            return chosen
        for name in value_names(trace.outputs):
            chosen.pop(name, None)
        for unit in self.calls(trace, Layouts(), None, self.planned):
            call, region = (unit.call, unit.region) if isinstance(unit, FusedCall) else (unit, None)
            fixed = region is not None and not size_hints(region.inputs)
            for p in call.flat_args:
                if p.name in chosen and not (fixed and chosen[p.name].executor == call.executor):
                    del chosen[p.name]
        return chosen

    def alone(self, call: BoundSymbol) -> BoundSymbol:
        if self.fusers.owner(call) is not None and call.symbol not in self.fusers.hosted:
            return call.replace(executor=self.single)
        return map_programs(call, self.program)


def _stays(place: int, call: BoundSymbol) -> bool:
    return not call.effects.removable
