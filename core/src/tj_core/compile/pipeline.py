"""From an acquired trace to a program: transforms stage by stage, claiming, code generation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tj_core.compile.blame import blaming
from tj_core.compile.checked_runs import Checks
from tj_core.compile.codegen import Program, generate
from tj_core.compile.collection import collecting_less
from tj_core.compile.compilation import Compilation, Counts, Later, Track
from tj_core.compile.context import PassContext
from tj_core.compile.failures import own_pass, warn_of
from tj_core.compile.fusing import FusedRegions
from tj_core.compile.keeping import Keeping
from tj_core.compile.kept_programs import KeptPrograms, Shown, implementations
from tj_core.compile.kernels import RegionKernel
from tj_core.compile.layouts import choices, readers, taking
from tj_core.compile.transforms import Ranked, without
from tj_core.edit.bodies import body_program
from tj_core.edit.editor import at_stage, recorded, timed
from tj_core.errors import PassError, PluginError, TjError, TraceError, add_note
from tj_core.ir.stage import Stage
from tj_core.ir.trace import BoundSymbol, PassRecord, Trace
from tj_core.passes.claim import ClaimRecord, claim
from tj_core.passes.cse import cse
from tj_core.passes.dce import dce
from tj_core.passes.fuse.fuse import FusedTrace, fuse, with_regions
from tj_core.passes.fuse.layouts import Choice, Layouts
from tj_core.verify.verifier import CHECK_VALUES, Check, level_for, verify

if TYPE_CHECKING:
    import contextlib

    from tj_core.compile.outcome import Assembly, Outcome, Wrapper
    from tj_core.contract.decline import Decline
    from tj_core.contract.executors import Executor, States
    from tj_core.contract.expansion import Expand
    from tj_core.contract.fusion import FusionRegion
    from tj_core.contract.rules import RuleTable
    from tj_core.contract.sizes import ProgramSizes
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.tags import TagRegistry

__all__ = ["Pipeline"]


@dataclass(frozen=True)
class Pipeline:
    """The passes of one session, in order.

    Transforms run after their stage in the order of ``transforms``, which the session has
    sorted: config, else priority, else name. A transform with ``produces`` moves the trace to
    that stage. ``later`` is called for programs that are compiled at their first use: with the
    seconds, and the counts of regions. ``finished`` are the programs that are kept on disk.
    ``notice`` looks at each acquired trace, and may warn of missing plugins.
    """

    transforms: Sequence[Ranked]
    executors: Sequence[Executor]
    expand: RuleTable[Expand]
    tags: TagRegistry
    tables: dict[str, RuleTable[Any]]
    check: Check = 0
    cse: bool = True
    dce: bool = True
    strict: bool = False
    regions: FusedRegions | None = field(default=None, compare=False)
    later: Callable[[dict[str, float], Counts], None] | None = field(default=None, compare=False)
    finished: KeptPrograms | None = field(default=None, compare=False)
    notice: Callable[[Trace], None] = field(default=lambda trace: None, compare=False)
    lock: Any = field(default_factory=threading.RLock, compare=False)

    @collecting_less()
    def compile(
        self, acquired: Trace, *, boxed: bool = False, sizes: ProgramSizes | None = None
    ) -> Compilation:
        """Compile ``acquired``, whose symbolic sizes are ``sizes``.

        :raises PassError: for a failure of a pass of tj's own, unless in strict mode.
        :raises TjError: for a failure of a plugin's pass, with the transform's name.
        """
        self.notice(acquired)
        pipeline: Pipeline = self
        declined: list[tuple[str, Decline]] = []
        while True:
            run = _Run(pipeline, [acquired], {Stage.ACQUIRED}, sizes=sizes)
            with pipeline.own("acquire"):
                run.check(acquired)
            run.through(Stage.ACQUIRED)
            if run.declined is None:
                return replace(run.finish(boxed), declined=tuple(declined))
            ranked, answer = run.declined
            pipeline = replace(pipeline, transforms=without(pipeline.transforms, ranked))
            if answer.keep_all_calls:
                pipeline = pipeline.keeping_all_calls()
            declined.append((ranked.transform.name, answer))

    def fallback(self, trace: Trace, *, boxed: bool = False) -> Compilation:
        """Compile ``trace`` by the fewest passes: the fallback executor runs every call.

        For a part of a program on which a pass fails after an earlier part has run.
        """
        owners = {call.executor for call in trace.calls}
        executors = [e for e in self.executors if e.fallback or e.name in owners]
        plain = replace(self, transforms=(), executors=executors, check=0, finished=None)
        return plain.keeping_all_calls().compile(trace, boxed=boxed)

    @property
    def checks(self) -> Checks:
        """The checks of claimed calls against the trace at run time."""
        owners = {executor.name: executor.owner for executor in self.executors}
        return Checks(owners, self.reference if self.check == CHECK_VALUES else None)

    def reference(self, call: BoundSymbol, trace: Trace) -> Callable[..., Any] | None:
        """The body of ``call`` as a function that the fallback executor runs; None without one."""
        program = body_program(call, trace)
        return None if program is None else self.fallback(program).function

    def own(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The context manager around a pass of tj's own: see `own_pass`."""
        return own_pass(name, strict=self.strict)

    def reads(self, tag: str) -> bool:
        """Test if a transform reads the tag ``tag``."""
        return any(tag in ranked.transform.reads for ranked in self.transforms)

    def keeping_all_calls(self) -> Pipeline:
        """The pipeline without the passes that remove or merge calls."""
        return replace(self, cse=False, dce=False)


@dataclass
class _Run:
    """One trace on its way through the pipeline.

    ``declined`` is the transform that declined the program, which ended the run. ``makers`` are
    the transforms that made traces, by index. ``chosen`` are the chosen strides of inputs,
    ``states`` the states of claims for calls, ``fused`` is the trace with regions, ``sizes`` are
    the symbolic sizes.

    ``keeping`` is the entry on disk. ``hidden`` is for a program found there: the index of its
    intermediate traces among ``traces``, and a function that reads them.
    """

    pipeline: Pipeline
    traces: list[Trace]
    reached: set[Stage]
    seconds: dict[str, float] = field(default_factory=dict)
    claims: tuple[ClaimRecord, ...] = ()
    implementations: dict[Any, Any] = field(default_factory=dict)
    hosted: frozenset[Symbol] = frozenset()
    assembly: Assembly | None = None
    wrappers: list[Wrapper] = field(default_factory=list)
    declined: tuple[Ranked, Decline] | None = None
    others: dict[str, Track | Trace] = field(default_factory=dict)
    makers: dict[int, Ranked] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    chosen: dict[str, Choice] = field(default_factory=dict)
    states: States = field(default_factory=dict)
    fused: FusedTrace | None = None
    sizes: ProgramSizes | None = None
    keeping: Keeping | None = None
    hidden: tuple[int, Callable[[], Shown]] | None = None

    def through(self, first: Stage) -> None:
        """Run the passes of the stages from ``first`` on, until a transform declines.

        If the finished program is on disk, the passes from FUNCTIONAL to CLAIMED are skipped.
        """
        self.transforms(stage for stage in Stage if first <= stage < Stage.FUNCTIONAL)
        if self.declined is None and first < Stage.SPLIT:
            self.keeping = self.looked_for(self.traces[0], self.traces)
        if self.declined is None and not self.recall():
            known = len(self.traces)
            later = max(first, Stage.FUNCTIONAL)
            self.transforms(stage for stage in Stage if later <= stage < Stage.CLAIMED)
            if self.declined is None:
                self.give_owners()
                self.keep(known)
        self.transforms([Stage.CLAIMED])

    def transforms(self, stages: Iterable[Stage]) -> None:
        """Run the transforms after ``stages``, until one declines."""
        for stage in stages:
            for ranked in self.pipeline.transforms:
                if ranked.transform.after is stage and self.declined is None:
                    self.transform(ranked)

    def give_owners(self) -> None:
        """Remove dead and repeated calls, and give every other call an executor."""
        if self.pipeline.dce:
            self.own_step("dce", dce)
        if self.pipeline.cse:
            self.own_step("cse", lambda trace: cse(trace, self.pipeline.tags))
        self.claim()

    def looked_for(self, trace: Trace, before: Sequence[Trace], *more: object) -> Keeping | None:
        """The entry on disk for ``trace``, which ``before`` and ``more`` determine, or None."""
        p = self.pipeline
        if p.finished is None:
            return None
        start = time.perf_counter()
        flags = p.cse, p.dce, sorted(self.reached), more
        found = Keeping.of(p.finished, trace, before, p.transforms, p.executors, self.sizes, flags)
        self.spend("look for the program", start)
        return found

    def recall(self) -> bool:
        """Take the finished program from disk, and return True, if there is one."""
        if self.keeping is None:
            return False
        start = time.perf_counter()
        kept = self.keeping.find(self.pipeline.transforms, self.context)
        self.spend("look for the program", start)
        if kept is None:
            return False
        found, said = kept
        for outcome in said:
            self.note(outcome)
        fused, executors = found.fused, self.pipeline.executors
        self.implementations |= implementations(fused, executors)
        self.fused, self.hidden = fused, (len(self.traces), found.shown)
        self.reached |= found.reached
        self.traces.append(fused.trace)
        self.check(fused.trace)
        self.compile_regions(fused.regions)
        self.counts = replace(self.counts, finished=1)
        return True

    def keep(self, known: int) -> None:
        """Store the program for other processes, without the first ``known`` traces."""
        if self.keeping is not None:
            start = time.perf_counter()
            fused = self.fused or FusedTrace(self.traces[-1])
            shown = Shown(tuple(self.traces[known:-1]), self.claims)
            self.keeping.keep(fused, self.reached, shown)
            self.spend("keep the program", start)

    def check(self, trace: Trace) -> None:
        """Verify ``trace`` at the pipeline's level."""
        if self.pipeline.check:
            start = time.perf_counter()
            verify(
                trace,
                level=level_for(self.pipeline.check, self.traces[0]),
                tags=self.pipeline.tags,
                expand=self.pipeline.expand,
                reached=self.reached,
            )
            self.spend("verify", start)

    def spend(self, name: str, start: float) -> None:
        """Add the seconds since ``start`` to those of pass ``name``."""
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def step(self, name: str, plugin: str, apply: Any, maker: Ranked | None = None) -> None:
        """Run a pass, ``maker``'s or tj's own, on the latest trace; append and check its trace."""
        before, start = self.traces[-1], time.perf_counter()
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
            after = recorded(after, PassRecord(name, plugin))
        after = timed(after, seconds)
        if maker is not None:
            self.makers[len(self.traces)] = maker
        self.traces.append(after)
        self.check(after)

    def own_step(self, name: str, apply: Callable[[Trace], Trace]) -> None:
        """Run one of the core's own passes."""
        with self.pipeline.own(name), self.blaming():
            self.step(name, "core", apply)

    def blaming(self) -> contextlib.AbstractContextManager[None]:
        """The context manager around a pass of the core: see `tj_core.compile.blame.blaming`."""
        p = self.pipeline
        return blaming(self.traces, self.makers, p.tags, p.strict)

    def context(self, ranked: Ranked) -> PassContext:
        """A context for one run of a transform."""
        p = self.pipeline
        stages = (other.transform.produces for other in p.transforms)
        return PassContext(
            ranked.transform.name,
            ranked.plugin,
            p.expand,
            p.tags,
            p.tables,
            p.executors,
            tuple(self.track()[0]),
            frozenset(stage for stage in stages if stage is not None),
            p.strict,
            self.states,
        )

    def track(self) -> tuple[Sequence[Trace], Sequence[ClaimRecord]]:
        """The traces of the passes, and the claims.

        Those of a program from disk are read at their first use.
        """
        if self.hidden is None:
            return tuple(self.traces), self.claims
        place, shown = self.hidden
        traces = Later(self.traces[:place], lambda: shown().traces, self.traces[place:])
        return traces, Later((), lambda: shown().claims, ())

    def transform(self, ranked: Ranked) -> None:
        """Run a transform on the latest trace, and note its outcome."""
        transform, p = ranked.transform, self.pipeline
        context = self.context(ranked)

        def apply(trace: Trace) -> Any:
            after, said = transform.apply(trace, context), context.outcome
            if said.declined is not None or said.skipped or not isinstance(after, Trace):
                return after
            if transform.produces is not None:
                self.reached.add(transform.produces)
                after = at_stage(after, transform.produces)
            return after

        theirs = p.strict or not transform.falls_back
        try:
            with own_pass(transform.name, strict=theirs), self.blaming():
                self.step(transform.name, ranked.plugin, apply, ranked)
        except (PassError, PluginError):  # these name the pass or the plugin
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
        said = context.outcome
        if said.declined is not None:
            self.declined = ranked, said.declined
        if self.keeping is not None:
            self.keeping.note(ranked, said)
        self.note(said)

    def note(self, said: Outcome) -> None:
        """Keep the assembly and the wrappers of a transform's outcome."""
        self.assembly = said.assembly or self.assembly
        self.wrappers += said.wrappers

    def claim(self) -> None:
        """Claim all calls, and fuse them if an executor fuses."""

        def apply(trace: Trace) -> Trace:
            claimed = claim(trace, self.pipeline.executors, self.pipeline.tags)
            self.claims, self.implementations = claimed.records, claimed.implementations
            self.reached.add(Stage.CLAIMED)
            self.hosted = claimed.hosted
            return claimed.trace

        self.own_step("claim", apply)
        if any(e.fusion is not None for e in self.pipeline.executors):
            self.fuse()

    def fuse(self) -> None:
        """Replace groups of calls by regions, and compile these."""
        p = self.pipeline

        def apply(trace: Trace) -> Trace:
            read = readers(self.assembly, trace.language.runtime) if self.assembly else {}
            facts = self.implementations, self.hosted, Layouts(read, self.chosen), p.tables
            made = fuse(trace, p.executors, p.tags, *facts, all_calls=not p.dce)
            self.fused, self.claims = made, with_regions(self.claims, made)
            return made.trace

        self.own_step("fuse", apply)
        assert self.fused is not None
        self.compile_regions(self.fused.regions)

    def compile_regions(self, found: Sequence[tuple[Symbol, FusionRegion]]) -> None:
        """Compile the regions that the program calls, or find them compiled."""
        p, start = self.pipeline, time.perf_counter()
        with p.own("compile regions"), self.blaming():
            regions = p.regions or FusedRegions(p.tags, p.strict)
            kernels, self.counts = regions.compile(found, p.executors)
        self.implementations |= kernels
        self.spend("compile regions", start)

    def program(self, boxed: bool) -> Program:
        """The program of the latest trace."""
        p, start = self.pipeline, time.perf_counter()
        with p.own("codegen"), self.blaming():
            last = self.traces[-1]
            program = generate(last, self.implementations, boxed=boxed, checks=p.checks)
        self.spend("codegen", start)
        return program

    def finish(self, boxed: bool) -> Compilation:
        """Assemble and wrap the program, and return the compilation."""
        program = self.program(self.assembly.boxed if self.assembly else boxed)
        function, others = program.function, self.others
        if self.assembly is not None:
            others |= self.assembly.others
            function = self.assembly.assemble(program, lambda name, t: self.later(name, t, others))
        for wrapper in reversed(self.wrappers):
            function = wrapper.wrap(function, _Recompiler(self))
            if wrapper.epilogue is not None:
                others["epilogue"] = wrapper.epilogue
        return Compilation(
            *self.track(),
            program,
            function,
            self.seconds,
            others,
            regions=self.regions(),
            counts=self.counts,
        )

    def regions(self) -> tuple[RegionKernel, ...]:
        """The kernels of the program's regions."""
        return tuple(k for k in self.implementations.values() if isinstance(k, RegionKernel))

    def later(self, name: str, trace: Trace, others: dict[str, Track | Trace]) -> Program:
        """The program of another trace of the same compilation, compiled at its first use."""
        with self.pipeline.lock:
            come = self.come(trace)
            try:
                return self._later(name, trace, others, come)
            except PassError as error:  # the first program has run: too late for eager
                warn_of(error)
                made = self.pipeline.fallback(trace, boxed=True)
                others[name] = Track(made.traces, made.claims, made.program)
                return taking(made.program, trace, come, {})

    def come(self, trace: Trace) -> dict[str, Choice]:
        """The inputs of ``trace`` that this program returns with chosen strides."""
        if self.fused is None or self.assembly is None:
            return {}
        made = choices(self.fused.trace, self.implementations)
        mine = {p.name for p in trace.inputs} & {*self.assembly.flexible}
        return {name: choice for name, choice in made.items() if name in mine}

    @collecting_less()
    def _later(
        self, name: str, trace: Trace, others: dict[str, Track | Trace], come: dict[str, Choice]
    ) -> Program:
        reached = {*self.reached} - {Stage.CLAIMED}
        run = _Run(
            self.pipeline, [trace], reached, chosen=come, states=self.states, sizes=self.sizes
        )
        if self.keeping is not None and self.assembly is not None:
            mine = self.assembly.others.get(name) is trace
            before, facts = [] if mine else [trace], (self.keeping.key, name, sorted(come.items()))
            run.keeping = run.looked_for(trace, before, facts)
        with self.pipeline.own(name):
            run.check(trace)
        run.through(Stage.SPLIT)
        program = run.program(boxed=True)
        others[name] = Track(*run.track(), program, run.regions())
        spent = {f"{name}: {key}": seconds for key, seconds in run.seconds.items()}
        self.seconds |= spent
        if self.pipeline.later is not None:
            self.pipeline.later(spent, run.counts)
        return taking(program, trace, come, run.fused.taken if run.fused is not None else {})


@dataclass(frozen=True, slots=True)
class _Recompiler:
    """The `Recompiler` bound to one pipeline run."""

    run: _Run

    def acquired(self) -> Compilation:
        pipeline = self.run.pipeline
        kept = [r for r in pipeline.transforms if r.transform.produces is None]
        return self._of(replace(pipeline, transforms=kept).keeping_all_calls(), self.run.traces[0])

    def compiled(self, trace: Trace) -> Compilation:
        return self._of(self.run.pipeline, trace)

    def _of(self, pipeline: Pipeline, trace: Trace) -> Compilation:
        with pipeline.lock:
            try:
                return pipeline.compile(trace, sizes=self.run.sizes)
            except PassError as error:
                warn_of(error)
                return pipeline.fallback(trace)

    def keep(self, name: str, compilation: Compilation) -> None:
        c = compilation
        self.run.others[name] = Track(c.traces, c.claims, c.program, c.regions)
