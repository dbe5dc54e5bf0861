"""The claims of a program, its regions, and the functions that its calls run."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tj_core.compile.codegen import Program, generate
from tj_core.compile.compilation import Counts
from tj_core.compile.kept_programs import implementations
from tj_core.compile.layouts import choices, readers
from tj_core.compile.region_kernels import RegionKernel
from tj_core.ir.stage import Stage
from tj_core.passes.claim import claim
from tj_core.passes.fuse.fuse import FusedTrace, fuse, with_regions
from tj_core.passes.fuse.layouts import Choice, Layouts

if TYPE_CHECKING:
    from tj_core.compile.checked_runs import Checks
    from tj_core.compile.fusing import FusedRegions
    from tj_core.compile.outcome import Assembly
    from tj_core.compile.steps import Steps
    from tj_core.contract.executors import Executor
    from tj_core.contract.fusion import FusionRegion
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.trace import Trace
    from tj_core.passes.claim_record import ClaimRecord
    from tj_core.passes.fuse.plan import Plan

__all__ = ["ClaimedProgram"]


@dataclass
class ClaimedProgram:
    """The claims of the calls of the latest trace of ``steps``, its regions, and the final program.

    ``compiler`` compiles the regions. With ``all_calls``, regions drop no unused call. ``chosen``
    are the chosen strides of inputs. ``hosted`` are symbols of calls that may stand in another
    executor's region; ``planned`` is the plan of the regions, and ``fused`` the trace with
    them. With ``wait``, another thread compiles new regions; with ``begin``, it may finish them.
    """

    steps: Steps
    executors: Sequence[Executor]
    tables: Mapping[str, RuleTable[Any]]
    compiler: FusedRegions
    all_calls: bool
    chosen: Mapping[str, Choice]
    wait: bool = False
    begin: bool = False
    claims: tuple[ClaimRecord, ...] = ()
    implementations: dict[Any, Any] = field(default_factory=dict)
    hosted: frozenset[Symbol] = frozenset()
    planned: Plan | None = None
    fused: FusedTrace | None = None
    counts: Counts = field(default_factory=Counts)

    def claim(self, assembly: Assembly | None) -> None:
        """Claim all calls, and fuse them if an executor fuses; see `Assembly` for strides."""

        def apply(trace: Trace) -> Trace:
            claimed = claim(trace, self.executors, self.steps.tags)
            self.claims, self.implementations = claimed.records, claimed.implementations
            self.steps.reached.add(Stage.CLAIMED)
            self.hosted, self.planned = claimed.hosted, claimed.planned
            return claimed.trace

        self.steps.own_step("claim", apply)
        if any(executor.fusion is not None for executor in self.executors):
            self.fuse(assembly)

    def fuse(self, assembly: Assembly | None) -> None:
        """Replace groups of calls by regions, and compile these."""

        def apply(trace: Trace) -> Trace:
            read = readers(assembly, trace.language.runtime) if assembly else {}
            layouts = Layouts(read, dict(self.chosen))
            facts = self.implementations, self.hosted, layouts, self.tables, self.planned
            made = fuse(trace, self.executors, self.steps.tags, *facts, all_calls=self.all_calls)
            self.fused, self.claims = made, with_regions(self.claims, made)
            return made.trace

        self.steps.own_step("fuse", apply)
        assert self.fused is not None
        self.compile_regions(self.fused.regions)

    def take(self, fused: FusedTrace) -> None:
        """Take a claimed program that was found on disk, and compile or find its regions."""
        self.implementations |= implementations(fused, self.executors)
        self.fused = fused
        self.steps.traces.append(fused.trace)
        self.steps.check(fused.trace)
        self.compile_regions(fused.regions)
        self.counts = replace(self.counts, finished=1)

    def compile_regions(self, found: Sequence[tuple[Symbol, FusionRegion]]) -> None:
        """Compile the regions that the program calls, or find them compiled."""
        start = time.perf_counter()
        with self.steps.own("compile regions"), self.steps.blaming():
            how = {"wait": self.wait, "begin": self.begin}
            kernels, self.counts = self.compiler.compile(found, self.executors, **how)
        self.implementations |= kernels
        self.steps.spend("compile regions", start)

    def generate(self, boxed: bool, checks: Checks, *, plain: bool = False) -> Program:
        """The program of the latest trace; a ``plain`` one runs no kernels of regions."""
        start = time.perf_counter()
        with self.steps.own("codegen"), self.steps.blaming():
            made = self.implementations
            if plain:
                stand_ins = {s: k.stand_in for s, k in made.items() if isinstance(k, RegionKernel)}
                made = {**made, **stand_ins}
            program = generate(self.steps.latest, made, boxed=boxed, checks=checks)
        self.steps.spend("codegen", start)
        return program

    @property
    def begun(self) -> bool:
        """True if another thread may be finishing regions."""
        fusions = (executor.fusion for executor in self.executors)
        can = any(fusion is not None and fusion.begin is not None for fusion in fusions)
        return can and self.begin and self.counts.compiled > 0

    @property
    def kernels(self) -> tuple[RegionKernel, ...]:
        """The kernels of the program's regions."""
        return tuple(k for k in self.implementations.values() if isinstance(k, RegionKernel))

    def choices(self, trace: Trace, flexible: Collection[str]) -> dict[str, Choice]:
        """The inputs of ``trace`` that this program returns with chosen strides.

        All of them are in ``flexible``.
        """
        if self.fused is None:
            return {}
        made = choices(self.fused.trace, self.implementations)
        mine = {p.name for p in trace.inputs} & {*flexible}
        return {name: choice for name, choice in made.items() if name in mine}

    @property
    def taken(self) -> Mapping[str, Choice]:
        """The inputs that the program takes with the strides in which they come."""
        return self.fused.taken if self.fused is not None else {}
