"""The data of a page, program by program, as plain values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core import explain
from tj_core.internal import printed_lines

from tj_report.memory import memory_over, memory_svg, readable
from tj_report.timeline import HEADER, rows, timeline_svg

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol, Trace
    from tj_core.internal import CompiledProgram

__all__ = ["Table", "collectives", "program_data"]

COLLECTIVES = frozenset(
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "distributed"}
)
"""Namespaces of operations that communicate, anywhere in the operations' names."""


@dataclass
class Table:
    """Values by number, each once: lines of traces and sources repeat from stage to stage."""

    values: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, value: str) -> int:
        """The number of ``value``, which is added if it is new."""
        if value not in self.numbers:
            self.numbers[value] = len(self.values)
            self.values.append(value)
        return self.numbers[value]


def program_data(program: CompiledProgram) -> dict[str, Any]:
    """The large data of one program, which the page reads when the program is chosen.

    A stage has three lists of numbers, one a line: of the text, the source and the executor.
    """
    lines, sources, executors = Table(), Table(), Table()
    # Number 0 is none, to the page's script.
    sources.number("")
    executors.number("")
    claimed = {record.call: record.executor or "" for record in program.claims if not record.depth}
    stages = [_stage(t, claimed, lines, sources, executors) for t in program.traces]
    explanation = explain(program)
    memory = memory_over(program.traces[-1])
    started = explanation.overlaps.get(program.part, ())
    return {
        "lines": lines.values,
        "sources": sources.values,
        "executors": executors.values,
        "stages": stages,
        "claims": [list(row) for row in explanation.rows()],
        "declines": [
            [name, reason, str(len(calls)), calls[0]]
            for (name, reason), calls in explanation.declines().items()
        ],
        "regions": [_region(use) for use in explanation.regions if use.program == program.part],
        "code": program.code,
        "memory": memory_svg(memory),
        "peak": readable(max(memory, default=0)),
        "collectives": collectives(program.traces[-1].calls),
        "timeline": timeline_svg(started),
        "started": [HEADER, *rows(started)] if started else [],
    }


def _stage(
    trace: Trace, claimed: dict[str, str], lines: Table, sources: Table, executors: Table
) -> dict[str, Any]:
    made = trace.history[-1] if trace.history else None
    name = trace.stage.name + (f" ({made.name})" if made else "")
    texts, places, owners = [], [], []
    for text, call in printed_lines(trace, sources=False, bodies=False):
        texts.append(lines.number(text))
        source = call.source.short() if call is not None and call.source else ""
        places.append(sources.number(source))
        owners.append(executors.number(_owner(call, claimed)))
    facts = {"name": name, "stage": trace.stage.name, "calls": len(trace.calls)}
    return {**facts, "lines": texts, "sources": places, "executors": owners}


def _owner(call: BoundSymbol | None, claimed: dict[str, str]) -> str:
    """The executor of a call, which earlier stages have from the claims of the last one."""
    if call is None:
        return ""
    if call.executor:
        return call.executor
    names = (p.name for p in call.flat_outs)
    return next((claimed[name] for name in names if claimed.get(name)), "")


def _region(use: Any) -> dict[str, Any]:
    kernel = use.kernel
    fused = kernel.fused
    return {
        "name": f"{kernel.executor}.{kernel.region.name}",
        "executor": kernel.executor,
        "calls": use.calls,
        "operations": [str(call.symbol) for call in kernel.region.body.calls],
        "seconds": round(fused.seconds, 3) if fused is not None else 0,
        "state": f"runs one by one: {kernel.failure}" if kernel.failure else "",
        "code": fused.source if fused is not None else "",
    }


def collectives(calls: Iterable[BoundSymbol]) -> list[list[str]]:
    """The calls that communicate: name, operation, and user's line."""
    found = []
    for call in calls:
        name = call.symbol.qualname
        if not COLLECTIVES.isdisjoint(name.split(".")):
            found.append([call.label, name, call.source.short() if call.source else ""])
    return found


def counted(owners: Sequence[str | None]) -> dict[str, int]:
    """The number of calls of each executor, the most frequent first."""
    return dict(Counter(name for name in owners if name).most_common())
