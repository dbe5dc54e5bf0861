"""From an acquired trace to a program: transforms stage by stage, claiming, code generation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.claim import ClaimRecord, claim
from tj_core.codegen import Program, generate
from tj_core.cse import cse
from tj_core.dce import dce
from tj_core.errors import TjError, TraceError, add_note
from tj_core.expand import Expand
from tj_core.passes import PassContext
from tj_core.records import Decline, Executor, Split, Transform, Wrapped
from tj_core.rules import RuleTable
from tj_core.stages import Stage
from tj_core.tags import TagRegistry
from tj_core.trace import PassRecord, Trace
from tj_core.verify import verify

__all__ = ["Compilation", "Pipeline", "Ranked", "Track"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A transform and the plugin it is from; a user's own come from ``user``."""

    plugin: str
    transform: Transform


@dataclass(frozen=True, slots=True)
class Track:
    """What one trace became on its way to a program."""

    traces: tuple[Trace, ...]
    claims: tuple[ClaimRecord, ...]
    program: Program


@dataclass(frozen=True, slots=True)
class Compilation:
    """Everything one acquired trace became: each pass's trace, the claims, the program.

    ``function`` is what runs: the program's, or what a plugin made of several programs or put
    around it. ``others`` are the programs beside the main one by name: ``"backward"``, and
    ``"outer"``, what stands around; those not yet compiled have a trace only. ``declined`` are
    the transforms that did not take the program, and why.
    """

    traces: tuple[Trace, ...]
    claims: tuple[ClaimRecord, ...]
    program: Program
    function: Callable[..., Any]
    seconds: dict[str, float]
    others: dict[str, Track | Trace] = field(default_factory=dict)
    declined: tuple[tuple[str, Decline], ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """The passes of one session, in order.

    Transforms run after their stage by order of ``transforms`` given here, which the session has
    sorted: config, else priority, else name. A transform with ``produces`` moves the trace to
    that stage.
    """

    transforms: Sequence[Ranked]
    executors: Sequence[Executor]
    expand: RuleTable[Expand]
    tags: TagRegistry
    tables: dict[str, RuleTable[Any]]
    check: int = 0
    cse: bool = True
    dce: bool = True
    lock: Any = field(default_factory=threading.RLock, compare=False)

    def compile(self, acquired: Trace, *, boxed: bool = False) -> Compilation:
        """The program of ``acquired`` and how it came about.

        :raises TjError: from a pass; if from a transform, a note names it.
        """
        pipeline: Pipeline = self
        declined: list[tuple[str, Decline]] = []
        while True:
            run = _Run(pipeline, [acquired], {Stage.ACQUIRED})
            run.check(acquired)
            try:
                run.through(Stage.ACQUIRED)
            except _Declined as found:
                pipeline = replace(pipeline, transforms=_without(pipeline.transforms, found.ranked))
                if found.answer.exact:
                    pipeline = pipeline.exact()
                declined.append((found.ranked.transform.name, found.answer))
                continue
            return replace(run.finish(boxed), declined=tuple(declined))

    def exact(self) -> Pipeline:
        """This pipeline, without the passes that remove or merge calls."""
        return replace(self, cse=False, dce=False)


class _Declined(Exception):
    """A transform does not take the program: it starts again without it."""

    def __init__(self, ranked: Ranked, answer: Decline) -> None:
        super().__init__(answer.reason)
        self.ranked = ranked
        self.answer = answer


def _without(transforms: Sequence[Ranked], declined: Ranked) -> tuple[Ranked, ...]:
    """``transforms`` but the one that declined and those of its plugin that make later stages."""

    def builds_on_it(ranked: Ranked) -> bool:
        made, missing = ranked.transform.produces, declined.transform.produces
        if ranked.plugin != declined.plugin or made is None or missing is None:
            return ranked is declined
        return made >= missing

    return tuple(ranked for ranked in transforms if not builds_on_it(ranked))


@dataclass
class _Run:
    """One trace on its way through the pipeline."""

    pipeline: Pipeline
    traces: list[Trace]
    reached: set[Stage]
    seconds: dict[str, float] = field(default_factory=dict)
    claims: tuple[ClaimRecord, ...] = ()
    implementations: dict[Any, Any] = field(default_factory=dict)
    parts: Split | None = None
    wrapped: list[Wrapped] = field(default_factory=list)
    others: dict[str, Track | Trace] = field(default_factory=dict)

    def through(self, first: Stage) -> None:
        """Run the passes of the stages from ``first`` on."""
        for stage in [s for s in Stage if s >= first]:
            if stage is Stage.CLAIMED:
                if self.pipeline.dce:
                    self.step("dce", "core", dce)
                if self.pipeline.cse:
                    self.step("cse", "core", lambda trace: cse(trace, self.pipeline.tags))
                self.claim()
            for ranked in self.pipeline.transforms:
                if ranked.transform.after is stage:
                    self.transform(ranked)

    def check(self, trace: Trace) -> None:
        if self.pipeline.check:
            start = time.perf_counter()
            verify(
                trace,
                level=self.pipeline.check,
                tags=self.pipeline.tags,
                expand=self.pipeline.expand,
                reached=self.reached,
            )
            self.spend("verify", start)

    def spend(self, name: str, start: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def step(self, name: str, plugin: str, apply: Any) -> None:
        """Run one pass on the latest trace and keep what it made."""
        before = self.traces[-1]
        start = time.perf_counter()
        after = apply(before)
        seconds = time.perf_counter() - start
        self.spend(name, start)
        if not isinstance(after, Trace):
            raise TraceError(
                f"pass {name!r} of plugin {plugin!r} returned {type(after).__name__}, not a Trace"
            )
        if after is before:
            return
        if len(after.history) == len(before.history):
            after = after.after(PassRecord(name, plugin))
        *earlier, last = after.history
        after = after.replace(history=(*earlier, replace(last, seconds=seconds)))
        self.traces.append(after)
        self.check(after)

    def transform(self, ranked: Ranked) -> None:
        transform, p = ranked.transform, self.pipeline
        stages = (other.transform.produces for other in p.transforms)
        context = PassContext(
            transform.name,
            ranked.plugin,
            p.expand,
            p.tags,
            p.tables,
            p.executors,
            tuple(self.traces),
            frozenset(stage for stage in stages if stage is not None),
        )

        def apply(trace: Trace) -> Any:
            after = transform.apply(trace, context)
            if isinstance(after, Decline):
                raise _Declined(ranked, after)
            if after is None and transform.produces is not None:
                return trace
            if isinstance(after, Split):
                self.parts, after = after, after.trace
            if isinstance(after, Wrapped):
                self.wrapped.append(after)
                after = after.trace
            if transform.produces is not None and isinstance(after, Trace):
                self.reached.add(transform.produces)
                after = after.replace(stage=transform.produces)
            return after

        try:
            self.step(transform.name, ranked.plugin, apply)
        except _Declined:
            raise
        except TjError as error:
            add_note(error, f"tj: in transform {transform.name!r} of plugin {ranked.plugin!r}")
            raise
        except Exception as error:
            raise TraceError(
                f"transform {transform.name!r} of plugin {ranked.plugin!r} failed: "
                f"{type(error).__name__}: {error}",
                hint=f'disable it with [tool.tj] disable = ["{ranked.plugin}"]',
            ) from error

    def claim(self) -> None:
        def apply(trace: Trace) -> Trace:
            claimed = claim(trace, self.pipeline.executors, self.pipeline.tags)
            self.claims, self.implementations = claimed.records, claimed.implementations
            self.reached.add(Stage.CLAIMED)
            return claimed.trace

        self.step("claim", "core", apply)

    def program(self, boxed: bool) -> Program:
        start = time.perf_counter()
        program = generate(self.traces[-1], self.implementations, boxed=boxed)
        self.spend("codegen", start)
        return program

    def finish(self, boxed: bool) -> Compilation:
        program = self.program(self.parts.boxed if self.parts else boxed)
        function = program.function
        others = self.others
        if self.parts is not None:
            others |= self.parts.others
            function = self.parts.assemble(program, lambda name, t: self.later(name, t, others))
        for wrapped in reversed(self.wrapped):
            function = wrapped.wrap(function, _Again(self))
            if wrapped.outer is not None:
                others["outer"] = wrapped.outer
        return Compilation(tuple(self.traces), self.claims, program, function, self.seconds, others)

    def later(self, name: str, trace: Trace, others: dict[str, Track | Trace]) -> Program:
        """The program of another trace of the same compilation, made when it is first needed."""
        with self.pipeline.lock:
            run = _Run(self.pipeline, [trace], {*self.reached} - {Stage.CLAIMED})
            run.check(trace)
            run.through(Stage.SPLIT)
            program = run.program(boxed=True)
            others[name] = Track(tuple(run.traces), run.claims, program)
            for key, spent in run.seconds.items():
                self.seconds[f"{name}: {key}"] = spent
        return program


@dataclass(frozen=True, slots=True)
class _Again:
    """See `Again`: of one run."""

    run: _Run

    def acquired(self) -> Compilation:
        pipeline = self.run.pipeline
        staying = [r for r in pipeline.transforms if r.transform.produces is None]
        with pipeline.lock:
            exact = replace(pipeline, transforms=staying).exact()
            return exact.compile(self.run.traces[0])

    def compiled(self, trace: Trace) -> Compilation:
        with self.run.pipeline.lock:
            return self.run.pipeline.compile(trace)

    def keep(self, name: str, compilation: Compilation) -> None:
        track = Track(compilation.traces, compilation.claims, compilation.program)
        self.run.others[name] = track
