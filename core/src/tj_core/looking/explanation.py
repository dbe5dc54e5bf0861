"""The claims report: the executor and the gradient rule of each operation, and all declines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tj_core.analysis.overlaps import Overlap, overlaps
from tj_core.compile.compilation import Compilation, Track
from tj_core.contract.starts import STARTS
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Symbol
from tj_core.showing import aligned, folded_html, table_html, text_html

if TYPE_CHECKING:
    from tj_core.compile.region_kernels import RegionKernel
    from tj_core.contract.decline import Decline
    from tj_core.contract.rules import RuleTable
    from tj_core.host.jitted import Fallback
    from tj_core.ir.trace import Change, Trace
    from tj_core.passes.claim_record import ClaimRecord

__all__ = ["Explanation", "RegionUse", "explain_compilation", "explain_part"]

HEADER = ("call", "operation", "executor", "declined by", "source")
GRADIENTS = ("call", "rule", "whose", "declined by")
TAGS = ("call", "tag", "declined by")
STARTED = (
    "program", "call", "operation", "group", "bytes", "after", "before", "calls between"
)  # fmt: skip
DECLINES = ("executor", "declined because", "calls", "the first")
REGIONS = ("region", "program", "calls", "operations", "seconds", "state")


@dataclass(frozen=True, slots=True)
class RegionUse:
    """A region, the program that calls it (``""`` is the main one), and the number of calls."""

    kernel: RegionKernel
    program: str
    calls: int


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The claims of one compiled program, and its fallbacks. `str` is a plain table.

    ``declined`` are the transforms that declined the program, with reasons. ``gradients`` are the
    gradient rule of each call, with its plugin, and declines; ``others`` are the claims of the
    compiled programs beside the main one, by name. ``regions`` are the fused regions:
    ``kernel.fused.source`` is the text of the generated code. ``ties`` say where names alone decide
    who was asked first for calls of the program. ``tags`` are calls with a tag that was not
    followed, and why; ``overlaps`` is what the programs start, such as collectives, by program.
    """

    claims: tuple[ClaimRecord, ...]
    fallbacks: tuple[Fallback, ...]
    declined: tuple[tuple[str, Decline], ...] = ()
    gradients: tuple[Change, ...] = ()
    others: Mapping[str, tuple[ClaimRecord, ...]] = field(default_factory=dict)
    regions: tuple[RegionUse, ...] = ()
    ties: tuple[str, ...] = ()
    tags: tuple[Change, ...] = ()
    overlaps: Mapping[str, tuple[Overlap, ...]] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """The table's rows, in program order; `HEADER` names the columns."""
        return map(_row, self.claims)

    def counts(self) -> dict[str, int]:
        """Number of calls per executor."""
        found: dict[str, int] = {}
        for record in self.claims:
            if record.executor:
                found[record.executor] = found.get(record.executor, 0) + 1
        return found

    def declines(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The declined calls by executor and reason; the most frequent reason first."""
        found: dict[tuple[str, str], list[str]] = {}
        for record in (*self.claims, *chain.from_iterable(self.others.values())):
            for name, reason in record.declined:
                known = reason.replace(f"no claim for {record.symbol}", "no claim for it")
                found.setdefault((name, known), []).append(record.call)
        ordered = sorted(found.items(), key=lambda item: -len(item[1]))
        return {key: tuple(calls) for key, calls in ordered}

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``tj explain --json``; the keys are stable."""
        return {
            "claims": [_named(HEADER, row) for row in self.rows()],
            "others": {
                name: [_named(HEADER, _row(record)) for record in claims]
                for name, claims in self.others.items()
            },
            "gradients": [_named(GRADIENTS, _gradient(change)) for change in self.gradients],
            "regions": [_named(REGIONS, _region(use)) for use in self.regions],
            "tags": [_named(TAGS, _tag(change)) for change in self.tags],
            "started": [_named(STARTED, row) for row in self.started()],
            "ties": list(self.ties),
            "without": [
                {"transform": name, "reason": answer.reason, "source": _source(answer.source)}
                for name, answer in self.declined
            ],
            "fallbacks": [
                {"reason": fallback.reason, "source": _source(fallback.source)}
                for fallback in self.fallbacks
            ],
        }

    def tables(self) -> Iterator[tuple[str, Sequence[str], Sequence[tuple[str, ...]]]]:
        """The tables: title, header and rows of each."""
        yield "", HEADER, list(self.rows())
        for name, claims in self.others.items():
            yield name, HEADER, list(map(_row, claims))
        if declines := self.declines():
            rows = [(*key, str(len(calls)), calls[0]) for key, calls in declines.items()]
            yield "declines", DECLINES, rows
        if self.gradients:
            yield "gradients", GRADIENTS, list(map(_gradient, self.gradients))
        if self.tags:
            yield "tags", TAGS, list(map(_tag, self.tags))
        if started := list(self.started()):
            yield "started", STARTED, started
        if self.regions:
            yield "regions", REGIONS, list(map(_region, self.regions))

    def started(self) -> Iterator[tuple[str, ...]]:
        """The rows of what the programs start; `STARTED` names the columns."""
        return (_started(name, one) for name, found in self.overlaps.items() for one in found)

    def remarks(self) -> Iterator[str]:
        """The transforms that declined the program, and its parts that run without tj."""
        yield from self.ties
        for name, answer in self.declined:
            yield f"without {name}: {answer.reason}{_at(answer.source)}"
        for fallback in self.fallbacks:
            yield f"without tj: {fallback.reason}{_at(fallback.source)}"

    def __str__(self) -> str:
        lines: list[str] = []
        for title, header, rows in self.tables():
            lines += ["", f"{title}:"] if title else []
            lines += aligned([header, *rows])
        return "\n".join([*lines, *self.remarks()])

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.counts().items())
        return f"<tj explanation: {counts or 'no calls'}>"

    def _repr_html_(self) -> str:
        parts = [
            folded_html(title, table_html(header, rows)) if title else table_html(header, rows)
            for title, header, rows in self.tables()
        ]
        return "".join(parts) + "".join(map(text_html, self.remarks()))


def _row(record: ClaimRecord) -> tuple[str, str, str, str, str]:
    return (
        "  " * record.depth + record.call,
        record.symbol.qualname,
        str(record.fused or record.executor or "(its body)"),
        _reasons(record.declined),
        record.source.short() if record.source else "",
    )


def _named(header: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    return {name.replace(" ", "_"): cell.strip() for name, cell in zip(header, row, strict=True)}


def _source(source: object) -> str | None:
    return str(source) if source else None


def _gradient(change: Change) -> tuple[str, ...]:
    return change.call, change.rule, change.plugin, _reasons(change.declined)


def _tag(change: Change) -> tuple[str, ...]:
    return change.call, change.rule, _reasons(change.declined)


def _started(program: str, found: Overlap) -> tuple[str, ...]:
    started, between = found.started, found.between
    size = "" if started.size is None else str(started.size)
    hidden = str(between) if found.hidden else "0 (exposed)"
    after, before = f"{found.after} calls", found.before or "(the end)"
    return program, found.call, started.operation, started.group, size, after, before, hidden


def _region(use: RegionUse) -> tuple[str, ...]:
    kernel = use.kernel
    operations = kernel.region.body.calls
    seconds = f"{kernel.fused.seconds:.2f}" if kernel.fused is not None else ""
    compiled = "kept on disk" if kernel.kept else "compiled"
    if kernel.waiting:
        compiled = "runs one by one: it waits for its kernel"
    state = f"runs one by one: {kernel.failure}" if kernel.failure else compiled
    name = f"{kernel.executor}.{kernel.region.name}"
    return name, use.program, str(use.calls), str(len(operations)), seconds, state


def _regions(name: str, trace: Trace, kernels: Sequence[RegionKernel]) -> Iterator[RegionUse]:
    symbols = [call.symbol for call in trace.calls]
    for kernel in kernels:
        count = symbols.count(Symbol(kernel.executor, kernel.region.name))
        yield RegionUse(kernel, name, count)


def _reasons(declined: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in declined)


def _at(source: object) -> str:
    return f" at {source}" if source else ""


def explain_compilation(
    compilation: Compilation,
    fallbacks: tuple[Fallback, ...] = (),
    ties: Iterable[tuple[str, str]] = (),
    tables: Mapping[str, RuleTable[Any]] = MappingProxyType({}),
) -> Explanation:
    """The explanation of ``compilation``.

    ``ties`` are texts of the session's, by executor; ``tables`` are its rule tables.
    """
    joint = _made_at(compilation, Stage.JOINT)
    halved = _made_at(compilation, Stage.SPLIT)
    tracks = {n: t for n, t in compilation.others.items() if isinstance(t, Track)}
    last = {"": compilation.traces[-1], **{n: t.traces[-1] for n, t in tracks.items()}}
    regions = [*_regions("", compilation.traces[-1], compilation.regions)]
    for name, track in tracks.items():
        regions += _regions(name, track.traces[-1], track.regions)
    claims = tuple(compilation.claims)
    others = {name: tuple(track.claims) for name, track in tracks.items()}
    taking = {record.executor for record in chain(claims, *others.values())}
    return Explanation(
        claims,
        fallbacks,
        compilation.declined,
        joint[::-1],
        others,
        tuple(regions),
        tuple(text for executor, text in ties if executor in taking),
        tuple(change for change in halved if change.declined),
        _overlaps(last, tables),
    )


def _overlaps(
    traces: Mapping[str, Trace], tables: Mapping[str, RuleTable[Any]]
) -> dict[str, tuple[Overlap, ...]]:
    starts = tables.get(STARTS)
    return {} if starts is None else {name: overlaps(t, starts) for name, t in traces.items()}


def _made_at(compilation: Compilation, stage: Stage) -> tuple[Change, ...]:
    """The changes by the pass that reached ``stage``."""
    trace = next((t for t in compilation.traces if t.stage is stage), None)
    return trace.history[-1].changes if trace is not None and trace.history else ()


def explain_part(
    compilation: Compilation,
    part: str,
    fallbacks: tuple[Fallback, ...] = (),
    tables: Mapping[str, RuleTable[Any]] = MappingProxyType({}),
) -> Explanation:
    """The explanation of the program ``part`` beside the main one: of its backward, for instance.

    It is empty for a program that is not compiled yet.
    """
    track = compilation.others[part]
    if not isinstance(track, Track):
        return Explanation((), fallbacks)
    regions = tuple(_regions(part, track.traces[-1], track.regions))
    found = _overlaps({part: track.traces[-1]}, tables)
    return Explanation(tuple(track.claims), fallbacks, regions=regions, overlaps=found)
