"""The pass: calls that an executor wants together become calls of regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.contract.executors import Executor
from tj_core.contract.fusion import FusionRegion
from tj_core.edit.editor import TraceEditor
from tj_core.edit.regions import map_programs
from tj_core.ir.symbol import Symbol
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import BoundSymbol, PassRecord, Trace
from tj_core.passes.fuse.plan import Fusers, plan
from tj_core.passes.fuse.regions import Facts, FusedCall, region_calls

__all__ = ["FusedTrace", "fuse"]


@dataclass(frozen=True, slots=True)
class FusedTrace:
    """A trace with regions: the symbols of their calls with what each stands for."""

    trace: Trace
    regions: tuple[tuple[Symbol, FusionRegion], ...] = ()


def fuse(
    trace: Trace,
    executors: Sequence[Executor],
    tags: TagRegistry,
    implementations: dict[Symbol, Callable[..., Any]],
    hosted: frozenset[Symbol],
) -> FusedTrace:
    """``trace``, which is claimed, with a call for each region.

    ``implementations`` are those of claimed calls, ``hosted`` the symbols that may stand in regions
    of other executors.
    """
    fusers = Fusers.of(executors, hosted)
    if not fusers.executors:
        return FusedTrace(trace)
    single = next((e.name for e in executors if e.fallback), None)
    pass_ = _Pass(fusers, implementations, single, tags, {})
    made = pass_.program(trace, PassRecord("fuse"))
    return FusedTrace(made, tuple(pass_.found.items()))


@dataclass(frozen=True, slots=True)
class _Pass:
    """One run of the pass.

    ``single`` is the executor of calls in no region, ``found`` are the regions by symbol.
    """

    fusers: Fusers
    implementations: dict[Symbol, Callable[..., Any]]
    single: str | None
    tags: TagRegistry
    found: dict[Symbol, FusionRegion]

    def program(self, trace: Trace, record: PassRecord | None = None) -> Trace:
        editor = TraceEditor(trace, self.tags)
        planned = plan(trace.calls, self.fusers)
        for unit in region_calls(planned.units, planned.views, trace.outputs, self.facts(trace)):
            if isinstance(unit, FusedCall):
                self.found.setdefault(unit.call.symbol, unit.region)
                editor.changed(unit.call, unit.call.symbol.qualname, unit.call.executor or "")
                editor.keep(unit.call)
            else:
                editor.keep(self.alone(unit))
        return editor.done(record)

    def facts(self, trace: Trace) -> Facts:
        return Facts(trace.language, self.implementations)

    def alone(self, call: BoundSymbol) -> BoundSymbol:
        if self.fusers.owner(call) is not None and call.symbol not in self.fusers.hosted:
            return call.replace(executor=self.single)
        return map_programs(call, self.program)
