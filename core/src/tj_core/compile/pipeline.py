"""From an acquired trace to a program: transforms stage by stage, claiming, code generation."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tj_core.compile.behind import Behind, further_programs, make_expected
from tj_core.compile.checked_runs import Checks
from tj_core.compile.claims import ClaimedProgram
from tj_core.compile.collection import collecting_less
from tj_core.compile.compilation import Compilation, Counts, Track
from tj_core.compile.context import PassContext
from tj_core.compile.failures import own_pass, warn_of
from tj_core.compile.fusing import FusedRegions
from tj_core.compile.keeping import Keeping
from tj_core.compile.late_programs import LatePrograms
from tj_core.compile.outcome import Outcome
from tj_core.compile.pair_checks import PairCheck, pair_check
from tj_core.compile.progress import Progress
from tj_core.compile.recall import Recall
from tj_core.compile.steps import Steps
from tj_core.compile.transforms import Outcomes, Ranked, without
from tj_core.edit.bodies import body_program
from tj_core.edit.editor import at_stage
from tj_core.errors import (
    PassError,
    PluginError,
    TjError,
    TraceError,
    VerificationError,
    add_note,
)
from tj_core.ir.proxy import size_hints
from tj_core.ir.stage import Stage
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.ir.tree import leaves
from tj_core.passes.cse import cse
from tj_core.passes.dce import dce
from tj_core.verify.verifier import CHECK_VALUES, Check

if TYPE_CHECKING:
    from tj_core.compile.codegen import Program
    from tj_core.compile.kept_programs import KeptPrograms
    from tj_core.contract.beside import Beside
    from tj_core.contract.decline import Decline
    from tj_core.contract.executors import Executor, States
    from tj_core.contract.expansion import Expand
    from tj_core.contract.rules import RuleTable
    from tj_core.contract.sizes import ProgramSizes
    from tj_core.ir.tags import TagRegistry
    from tj_core.passes.claim_record import ClaimRecord
    from tj_core.passes.fuse.layouts import Choice

__all__ = ["Pipeline"]


@dataclass(frozen=True)
class Pipeline:
    """The passes of one session, in order.

    Transforms run after their stage in the order of ``transforms``, which the session has
    sorted: config, else priority, else name. A transform with ``produces`` moves the trace to
    that stage. ``later`` is called for programs that are compiled at their first use: with the
    seconds, and the counts of regions. ``finished`` are the programs that are kept on disk.
    ``notice`` looks at each acquired trace, and may warn of missing plugins. ``progress`` shows on
    a terminal which pass runs. With ``beside``, regions are compiled behind the program; with
    ``begins``, they may be finished while the backward is made. ``complete``: see `PassContext`.
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
    progress: Progress = field(default_factory=lambda: Progress(False), compare=False)
    lock: Any = field(default_factory=threading.RLock, compare=False)
    beside: Beside | None = field(default=None, compare=False)
    begins: bool = field(default=True, compare=False)
    complete: bool = field(default=False, compare=False)

    @collecting_less()
    def compile(
        self,
        acquired: Trace,
        *,
        boxed: bool = False,
        sizes: ProgramSizes | None = None,
        reason: str = "",
    ) -> Compilation:
        """Compile ``acquired``, whose symbolic sizes are ``sizes``; ``reason``: see `PassContext`.

        :raises PassError: for a failure of a pass of tj's own, unless in strict mode.
        :raises TjError: for a failure of a plugin's pass, with the transform's name.
        """
        with self.progress.showing(acquired.name, self.passes):
            return self._compile(acquired, boxed, sizes, reason)

    def _compile(
        self, acquired: Trace, boxed: bool, sizes: ProgramSizes | None, reason: str
    ) -> Compilation:
        self.notice(acquired)
        pipeline: Pipeline = self
        declined: list[tuple[str, Decline]] = []
        while True:
            reached, wait = {Stage.ACQUIRED}, pipeline.waits
            run = _Run.of(pipeline, acquired, reached, sizes, reason=reason, wait=wait)
            with pipeline.own("acquire"):
                run.steps.check(acquired)
            run.through(Stage.ACQUIRED)
            if run.outcomes.declined is None:
                return replace(run.finish(boxed), declined=tuple(declined))
            ranked, answer = run.outcomes.declined
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
    def waits(self) -> bool:
        """True if regions are compiled behind the program."""
        return self.beside is not None and any(e.fusion is not None for e in self.executors)

    @property
    def passes(self) -> int:
        """About as many passes as a program goes through, with its capture."""
        return len(self.transforms) + 7

    @property
    def checks(self) -> Checks:
        """The checks of claimed calls against the trace at run time."""
        owners = {executor.name: executor.owner for executor in self.executors}
        if self.check != CHECK_VALUES:
            return Checks(owners)
        return Checks(owners, self.reference, self.pair_check)

    def pair_check(self, call: BoundSymbol, trace: Trace) -> PairCheck | None:
        """The check of ``call`` if it is the forward of an executor's pair."""
        return pair_check(call, trace, self.executors)

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

    Its passes are in ``steps``, what claiming makes of it in ``claimed``, its place on disk in
    ``recall``, the programs compiled later in ``late``. ``states`` are the states of claims for
    calls. A transform that declines the program ends the run.
    """

    pipeline: Pipeline
    steps: Steps
    claimed: ClaimedProgram
    recall: Recall
    late: LatePrograms = field(init=False)
    sizes: ProgramSizes | None = None
    reason: str = ""
    states: States = field(default_factory=dict)
    outcomes: Outcomes = field(default_factory=Outcomes)

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        trace: Trace,
        reached: set[Stage],
        sizes: ProgramSizes | None,
        chosen: Mapping[str, Choice] = MappingProxyType({}),
        reason: str = "",
        *,
        wait: bool = False,
    ) -> _Run:
        """A run for ``trace``, which is at the stages ``reached`` and has inputs ``chosen``.

        With ``wait``, its regions are compiled behind the program.
        """
        p = pipeline
        steps = Steps([trace], reached, p.expand, p.tags, p.check, p.strict, begin=p.progress.step)
        compiler = p.regions or FusedRegions(p.tags, p.strict)
        how = not p.dce, chosen, wait, p.begins
        claimed = ClaimedProgram(steps, p.executors, p.tables, compiler, *how)
        return cls(p, steps, claimed, Recall(steps), sizes=sizes, reason=reason)

    def __post_init__(self) -> None:
        def fallback(trace: Trace) -> Compilation:
            return self.pipeline.fallback(trace, boxed=True)

        self.late = LatePrograms(self.pipeline.lock, self.choices, self.part, fallback)

    def through(self, first: Stage) -> None:
        """Run the passes of the stages from ``first`` on, until a transform declines.

        If the finished program is on disk, the passes from FUNCTIONAL to CLAIMED are skipped.
        """
        self.transforms(stage for stage in Stage if first <= stage < Stage.FUNCTIONAL)
        if self.outcomes.declined is None and first < Stage.SPLIT:
            self.look_for(self.steps.traces)
        if self.outcomes.declined is None and not self.found():
            known = len(self.steps.traces)
            later = max(first, Stage.FUNCTIONAL)
            with self.recall.making:
                self.transforms(stage for stage in Stage if later <= stage < Stage.CLAIMED)
                if self.outcomes.declined is None:
                    self.give_owners()
                    self.recall.keep(self.claimed.fused, known, self.claimed.claims)
        self.transforms([Stage.CLAIMED])

    def transforms(self, stages: Iterable[Stage]) -> None:
        """Run the transforms after ``stages``, until one declines."""
        for stage in stages:
            for ranked in self.pipeline.transforms:
                if ranked.transform.after is stage and self.outcomes.declined is None:
                    self.transform(ranked)

    def give_owners(self) -> None:
        """Remove dead and repeated calls, and give every other call an executor."""
        if self.pipeline.dce:
            self.steps.own_step("dce", dce)
        if self.pipeline.cse:
            self.steps.own_step("cse", lambda trace: cse(trace, self.pipeline.tags))
        self.claimed.claim(self.outcomes.assembly)

    def look_for(self, before: Sequence[Trace], *more: object) -> None:
        """Look for the entry on disk of the program, which ``before`` and ``more`` determine."""
        p = self.pipeline
        if p.finished is None:
            return
        start = time.perf_counter()
        trace, reached = self.steps.traces[0], sorted(self.steps.reached)
        flags = (p.cse, p.dce, p.complete, reached, more)
        self.recall.entry = Keeping.of(
            p.finished, trace, before, p.transforms, p.executors, self.sizes, flags
        )
        self.steps.spend("look for the program", start)

    def found(self) -> bool:
        """Take the finished program from disk, and return True, if there is one."""
        kept = self.recall.find(self.pipeline.transforms, self.context)
        if kept is None:
            return False
        found, said = kept
        self.outcomes.restore(said, found.said)
        self.claimed.take(found.fused)
        return True

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
            self.reason,
            p.complete,
        )

    def track(self) -> tuple[Sequence[Trace], Sequence[ClaimRecord]]:
        """The traces of the passes, and the claims."""
        return self.recall.track(self.claimed.claims)

    def transform(self, ranked: Ranked) -> None:
        """Run a transform on the latest trace, and note its outcome."""
        transform, p = ranked.transform, self.pipeline
        context, answers = self.context(ranked), []

        def apply(trace: Trace) -> Any:
            answer: Any = transform.apply(trace, context)
            if not isinstance(answer, (Trace, Outcome)):
                return answer  # the step says that it is no trace
            answers.append(said := Outcome.of(answer))
            if transform.produces is None and said.assembly is None:
                _check_outputs(trace, said.trace)
            if said.declined is not None or said.skipped or transform.produces is None:
                return said.trace
            self.steps.reached.add(transform.produces)
            return at_stage(said.trace, transform.produces)

        theirs = p.strict or not transform.falls_back
        try:
            with own_pass(transform.name, strict=theirs), self.steps.blaming():
                self.steps.step(transform.name, ranked.plugin, apply, ranked)
        except (PassError, PluginError):  # these name the pass or the plugin
            raise
        except VerificationError as error:
            raise VerificationError(
                f"{ranked} made a wrong trace: {error.message}",
                source=error.source,
                hint=ranked.remedy,
            ) from error
        except TjError as error:
            add_note(error, f"tj: in {ranked}" + ("" if error.hint else f"; {ranked.remedy}"))
            raise
        except Exception as error:
            raise TraceError(
                f"{ranked} failed: {type(error).__name__}: {error}", hint=ranked.remedy
            ) from error
        (said,) = answers
        self.recall.note(ranked, said)
        self.outcomes.add(ranked, said)

    def program(self, boxed: bool) -> Program:
        """The program of the latest trace."""
        return self.claimed.generate(boxed, self.pipeline.checks)

    def finish(self, boxed: bool) -> Compilation:
        """Assemble and wrap the program, and return the compilation."""
        assembly, others = self.outcomes.assembly, self.late.others
        boxed = assembly.boxed if assembly else boxed
        program = self.program(boxed)
        if assembly is not None:
            others |= assembly.others
        function = self.assembled(program, self.late)
        further = further_programs(function)
        behind = self.behind()
        if behind is not None:
            plain = self.claimed.generate(boxed, self.pipeline.checks, plain=True)
            late = partial(self.part, add=weakref.WeakMethod(behind.add))
            slow = self.assembled(plain, replace(self.late, compile=late))
            function = behind.between(slow, function)
        elif self.claimed.begun and not size_hints(self.steps.traces[0].inputs):
            # While another thread finishes the forward's regions. What fails raises in a backward.
            # What a backward assumes of symbols would be guards of the forward, too.
            with contextlib.suppress(Exception):
                make_expected(function)
        for wrapper in self.outcomes.wrappers:
            function = wrapper.wrap(function, _Recompiler(self))
            if wrapper.epilogue is not None:
                others["epilogue"] = wrapper.epilogue
        return Compilation(
            *self.track(),
            program,
            function,
            self.steps.seconds,
            others,
            regions=self.claimed.kernels,
            counts=self.claimed.counts,
            wrapped=tuple(self.outcomes.payloads),
            behind=behind,
            further=further,
        )

    def assembled(self, program: Program, late: LatePrograms) -> Callable[..., Any]:
        """The function of ``program``, with programs beside it from ``late``."""
        assembly = self.outcomes.assembly
        return program.function if assembly is None else assembly.assemble(program, late.program)

    def behind(self) -> Behind | None:
        """The compilation behind this program; None where nothing is to be compiled there.

        A program that finds all its kernels runs them at once, and so does its backward then.
        """
        kernels = self.claimed.kernels
        waits = any(k.waiting for k in kernels) or (
            self.outcomes.assembly is not None and not kernels
        )
        p = self.pipeline
        if not (p.waits and waits):
            return None
        assert p.beside is not None
        name = self.steps.traces[0].name
        return Behind(name, self.claimed.compiler, p.executors, kernels, p.beside)

    def choices(self, trace: Trace) -> dict[str, Choice]:
        """The inputs of ``trace`` that this program returns with chosen strides."""
        flexible = self.outcomes.assembly.flexible if self.outcomes.assembly is not None else ()
        return self.claimed.choices(trace, flexible)

    @collecting_less()
    def part(
        self,
        name: str,
        trace: Trace,
        come: dict[str, Choice],
        add: Callable[[], Callable[..., None] | None] | None = None,
    ) -> tuple[Track, Mapping[str, Choice]]:
        """Another trace of the same compilation, compiled for inputs that ``come`` with strides.

        The second result is the strides that the program takes as they come. With ``add``, the
        program is a plain one, and the method that ``add`` returns gets the kernels of its regions.
        """
        reached = {*self.steps.reached} - {Stage.CLAIMED}
        wait = add is not None
        run = _Run.of(self.pipeline, trace, reached, self.sizes, come, self.reason, wait=wait)
        run.states = self.states
        if self.recall.entry is not None and self.outcomes.assembly is not None:
            mine = self.outcomes.assembly.others.get(name) is trace
            # Names of others tell how many there were before, in this process.
            facts = self.recall.entry.key, name if mine else "", sorted(come.items())
            run.look_for([] if mine else [trace], facts)
        with self.pipeline.progress.showing(name, self.pipeline.passes):
            with self.pipeline.own(name):
                run.steps.check(trace)
            run.through(Stage.SPLIT)
            program = run.claimed.generate(True, self.pipeline.checks, plain=wait)
        if add is not None and (take := add()) is not None:
            take(run.claimed.kernels)
        spent = {f"{name}: {key}": seconds for key, seconds in run.steps.seconds.items()}
        if self.pipeline.later is None:
            self.steps.seconds.update(spent)
        else:
            self.pipeline.later(spent, run.claimed.counts)
        return Track(*run.track(), program, run.claimed.kernels), run.claimed.taken


@dataclass(frozen=True, slots=True)
class _Recompiler:
    """The `Recompiler` bound to one pipeline run."""

    run: _Run

    def acquired(self, *, fused: bool = True) -> Compilation:
        pipeline = self.run.pipeline
        if not fused:
            alone = [replace(e, fusion=None) for e in pipeline.executors]
            pipeline = replace(pipeline, executors=alone)
        kept = [r for r in pipeline.transforms if r.transform.produces is None]
        plain = replace(pipeline, transforms=kept).keeping_all_calls()
        return self._of(plain, self.run.steps.traces[0])

    def compiled(self, trace: Trace) -> Compilation:
        return self._of(self.run.pipeline, trace)

    def _of(self, pipeline: Pipeline, trace: Trace) -> Compilation:
        with pipeline.lock:
            try:
                return pipeline.compile(trace, sizes=self.run.sizes, reason=self.run.reason)
            except PassError as error:
                warn_of(error)
                return pipeline.fallback(trace)

    def show(self, name: str, compilation: Compilation) -> None:
        self.run.late.show(name, compilation)


def _check_outputs(before: Trace, after: Trace) -> None:
    """Check that a transform inside of a stage left the number of results as it was.

    Except for one that assembles its trace and others to the program: these may return more.
    """
    counts = [sum(1 for _ in leaves(trace.outputs)) for trace in (before, after)]
    if counts[0] != counts[1]:
        raise VerificationError(f"it returns {counts[1]} values, and the program {counts[0]}")
