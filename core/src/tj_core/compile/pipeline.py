"""From an acquired trace to a program: transforms stage by stage, claiming, code generation."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.compile.checked_runs import Checks
from tj_core.compile.collection import collecting_less
from tj_core.compile.compilation import Compilation, Counts
from tj_core.compile.failures import own_pass
from tj_core.compile.fusing import FusedRegions
from tj_core.compile.kept_programs import KeptPrograms
from tj_core.compile.run import Run
from tj_core.compile.transforms import Ranked
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Executor
from tj_core.contract.expansion import Expand
from tj_core.contract.rules import RuleTable
from tj_core.contract.sizes import ProgramSizes
from tj_core.edit.bodies import body_program
from tj_core.ir.stage import Stage
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.verify.verifier import CHECK_VALUES, Check

__all__ = ["Pipeline"]


@dataclass(frozen=True)
class Pipeline:
    """The passes of one session, in order.

    Transforms run after their stage by order of ``transforms`` given here, which the session has
    sorted: config, else priority, else name. A transform with ``produces`` moves the trace to
    that stage. ``later`` is told of programs that are compiled when they are first needed: the
    seconds, and how they came about. ``finished`` are the programs that are kept on disk.
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
    lock: Any = field(default_factory=threading.RLock, compare=False)

    @collecting_less()
    def compile(
        self, acquired: Trace, *, boxed: bool = False, sizes: ProgramSizes | None = None
    ) -> Compilation:
        """The program of ``acquired``, of whose symbols ``sizes`` knows, and how it came about.

        :raises PassError: from a pass of tj's own, unless in strict mode.
        :raises TjError: from a plugin's pass; a note names it.
        """
        pipeline: Pipeline = self
        declined: list[tuple[str, Decline]] = []
        while True:
            run = Run(pipeline, [acquired], {Stage.ACQUIRED}, sizes=sizes)
            with pipeline.own("acquire"):
                run.check(acquired)
            run.through(Stage.ACQUIRED)
            if run.declined is None:
                return replace(run.finish(boxed), declined=tuple(declined))
            ranked, answer = run.declined
            pipeline = replace(pipeline, transforms=_without(pipeline.transforms, ranked))
            if answer.keep_all_calls:
                pipeline = pipeline.keeping_all_calls()
            declined.append((ranked.transform.name, answer))

    def fallback(self, trace: Trace, *, boxed: bool = False) -> Compilation:
        """The program of ``trace`` by the fewest passes: the fallback executor runs every call.

        For a program that a pass failed on when its first part had run already.
        """
        owners = {call.executor for call in trace.calls}
        executors = [e for e in self.executors if e.fallback or e.name in owners]
        plain = replace(self, transforms=(), executors=executors, check=0, finished=None)
        plain = plain.keeping_all_calls()
        return plain.compile(trace, boxed=boxed)

    @property
    def checks(self) -> Checks:
        """How claimed calls are held against the trace as they run."""
        owners = {executor.name: executor.owner for executor in self.executors}
        return Checks(owners, self.reference if self.check == CHECK_VALUES else None)

    def reference(self, call: BoundSymbol, trace: Trace) -> Callable[..., Any] | None:
        """The body of ``call`` as the fallback executor runs it."""
        program = body_program(call, trace)
        return None if program is None else self.fallback(program).function

    def own(self, name: str) -> contextlib.AbstractContextManager[None]:
        """While a pass of tj's own runs: see `own_pass`."""
        return own_pass(name, strict=self.strict)

    def reads(self, tag: str) -> bool:
        """Whether a transform reads the tag called ``tag``."""
        return any(tag in ranked.transform.reads for ranked in self.transforms)

    def keeping_all_calls(self) -> Pipeline:
        """This pipeline, without the passes that remove or merge calls."""
        return replace(self, cse=False, dce=False)


def _without(transforms: Sequence[Ranked], declined: Ranked) -> tuple[Ranked, ...]:
    """``transforms`` but the one that declined and those of its plugin that make later stages."""

    def builds_on_it(ranked: Ranked) -> bool:
        made, missing = ranked.transform.produces, declined.transform.produces
        if ranked.plugin != declined.plugin or made is None or missing is None:
            return ranked is declined
        return made >= missing

    return tuple(ranked for ranked in transforms if not builds_on_it(ranked))
