"""From an acquired trace to a program: transforms stage by stage, claiming, code generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.claim import ClaimRecord, claim
from tj_core.codegen import Program, generate
from tj_core.cse import cse
from tj_core.dce import dce
from tj_core.errors import TjError, TraceError, UnreachableStageError, add_note
from tj_core.expand import Expand
from tj_core.passes import PassContext
from tj_core.records import Executor, Transform, Wrapped
from tj_core.rules import RuleTable
from tj_core.stages import Stage
from tj_core.tags import TagRegistry
from tj_core.trace import PassRecord, Trace
from tj_core.verify import verify

__all__ = ["Compilation", "Pipeline", "Ranked"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A transform and the plugin it is from; a user's own come from ``user``."""

    plugin: str
    transform: Transform


@dataclass(frozen=True, slots=True)
class Compilation:
    """Everything one trace became: each pass's trace, the claims, the program.

    ``function`` is what runs: the program's, or what transforms put around it; ``outer`` are the
    traces of those, the innermost first. ``unreached`` says why the program runs as it is written,
    though there are transforms to stages.
    """

    traces: tuple[Trace, ...]
    claims: tuple[ClaimRecord, ...]
    program: Program
    function: Callable[..., Any]
    seconds: dict[str, float]
    outer: tuple[Trace, ...] = ()
    unreached: str = ""


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

    def compile(self, acquired: Trace, *, boxed: bool = False) -> Compilation:
        """The program of ``acquired`` and how it came about.

        :raises TjError: from a pass; if from a transform, a note names it.
        """
        try:
            return self._compile(acquired, boxed)
        except UnreachableStageError as error:
            return replace(self.as_acquired._compile(acquired, boxed), unreached=str(error))

    @property
    def as_acquired(self) -> Pipeline:
        """The same without the transforms to stages."""
        staying = [t for t in self.transforms if t.transform.produces is None]
        return replace(self, transforms=staying)

    def _compile(self, acquired: Trace, boxed: bool) -> Compilation:
        run = _Run(self, [acquired], {Stage.ACQUIRED})
        run.check(acquired)
        for stage in Stage:
            if stage is Stage.CLAIMED:
                run.step("dce", "core", dce)
                if self.cse:
                    run.step("cse", "core", lambda trace: cse(trace, self.tags))
                run.claim()
            for ranked in self.transforms:
                if ranked.transform.after is stage:
                    run.transform(ranked)
        return run.finish(boxed)


@dataclass
class _Run:
    """One trace on its way through the pipeline."""

    pipeline: Pipeline
    traces: list[Trace]
    reached: set[Stage]
    seconds: dict[str, float] = field(default_factory=dict)
    claims: tuple[ClaimRecord, ...] = ()
    implementations: dict[Any, Any] = field(default_factory=dict)
    wrapped: list[Wrapped] = field(default_factory=list)

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
        produced = frozenset(stage for stage in stages if stage is not None)
        context = PassContext(
            transform.name, ranked.plugin, p.expand, p.tags, p.tables, produced, p.executors
        )

        def apply(trace: Trace) -> Trace:
            after = transform.apply(trace, context)
            if isinstance(after, Wrapped):
                self.wrapped.append(after)
                after = after.trace
            if after is None:
                return trace
            if transform.produces is not None and isinstance(after, Trace):
                self.reached.add(transform.produces)
                after = after.replace(stage=transform.produces)
            return after

        try:
            self.step(transform.name, ranked.plugin, apply)
        except UnreachableStageError:
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

    def as_acquired(self) -> Callable[..., Any]:
        """What runs the program without transforms to stages."""
        return self.pipeline.as_acquired.compile(self.traces[0]).function

    def finish(self, boxed: bool) -> Compilation:
        start = time.perf_counter()
        program = generate(self.traces[-1], self.implementations, boxed=boxed)
        function = program.function
        for wrapped in reversed(self.wrapped):
            function = wrapped.wrap(function, self.as_acquired)
        self.spend("codegen", start)
        outer = tuple(w.outer for w in reversed(self.wrapped) if w.outer is not None)
        return Compilation(tuple(self.traces), self.claims, program, function, self.seconds, outer)
