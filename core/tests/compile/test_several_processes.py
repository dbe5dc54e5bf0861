"""Several processes that compile the same at once: one compiles, the others read."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tj_core import disk_locks
from tj_core.compile.fusing import FusedRegions
from tj_core.compile.kept_programs import KeptPrograms
from tj_core.compile.kept_regions import KeptRegions
from tj_core.compile.pipeline import Pipeline
from tj_core.compile.transforms import Ranked, Transform
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.fusion import Fused, Fusion, FusionRegion
from tj_core.contract.rules import RuleTable
from tj_core.disk import Entries
from tj_core.host.session import Session
from tj_core.ir.stage import Stage
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import Trace
from tj_core.testing.fusing import LoopPlugin, one_by_one
from tj_core.testing.numeric import MEANING, NumericPlugin, call, expansions, vector

if TYPE_CHECKING:
    from pathlib import Path

if disk_locks.fcntl is None:
    pytest.skip("this system has no fcntl: each process compiles", allow_module_level=True)

LANGUAGE = Session(plugins=[NumericPlugin()]).language
X, Y, Z = vector("x", 2), vector("y", 2), vector("z", 2)
PROGRAM = Trace(
    (X,), (call("neg", X, outputs=Y), call("mul", X, Y, outputs=Z)), Z, language=LANGUAGE
)
LOOPS = LoopPlugin()
NUMBER = 4
AT_ONCE = multiprocessing.get_context("fork")


class Process:
    """A session with caches in ``folder``, of regions alone or of ``programs``, too.

    ``fails``: its transform does.
    """

    def __init__(
        self, folder: Path, start: Any, programs: bool = True, fails: bool = False
    ) -> None:
        self.folder, self.start, self.programs, self.fails = folder, start, programs, fails

    def apply(self, trace: Trace, context: object) -> Trace:
        time.sleep(0.2)
        if self.fails:
            raise ZeroDivisionError
        return trace

    def fuse(self, region: FusionRegion) -> Fused:
        time.sleep(0.2)
        made = LOOPS.fuse(region)
        assert isinstance(made, Fused)
        return Fused(made.function, made.boxed, kept="loops")

    def counts(self) -> tuple[int, int, int]:
        """Regions compiled, regions from disk and programs from disk."""
        fusion = Fusion(
            LOOPS.can_fuse,
            self.fuse,
            restore=lambda region, text: one_by_one(region),
            fingerprint=lambda: "loops",
        )
        claims: RuleTable[Claim] = RuleTable("claim")
        for name, meaning in MEANING.items():
            claims.set(f"num.{name}", Claim(meaning))
        executors = (
            Executor("ex", claims, fallback=True),
            Executor("loop", RuleTable("claim"), fusion=fusion),
        )
        transform = Transform("slow", self.apply, Stage.FUNCTIONAL)
        programs, regions = (Entries(self.folder / name) for name in ("programs", "regions"))
        keeping = programs, executors, (transform,), LANGUAGE, lambda: "session"
        tags = TagRegistry()
        pipeline = Pipeline(
            [Ranked("mine", transform)],
            executors,
            expansions,
            tags,
            {"expand": expansions},
            strict=True,
            regions=FusedRegions(tags, True, KeptRegions(regions, executors, lambda: "session")),
            finished=KeptPrograms(*keeping) if self.programs else None,
        )
        self.start.wait(10)
        made = pipeline.compile(PROGRAM)
        assert made.function([1.0, 2.0]) == [-1.0, -4.0]
        return made.counts.compiled, made.counts.kept, made.counts.finished

    def run(self, answers: Any) -> None:
        try:
            answers.put(self.counts())
        except Exception as error:
            answers.put(repr(error))


def at_once(folder: Path, **options: bool) -> list[Any]:
    """The counts of all processes, sorted."""
    start, answers = AT_ONCE.Barrier(NUMBER), AT_ONCE.SimpleQueue()
    processes = [
        AT_ONCE.Process(target=Process(folder, start, **options).run, args=(answers,))
        for _ in range(NUMBER)
    ]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return sorted(found, key=repr)


def test_one_compiles(tmp_path: Path) -> None:
    assert at_once(tmp_path) == [(0, 1, 1)] * (NUMBER - 1) + [(1, 0, 0)]
    assert sorted(p.suffix for p in tmp_path.rglob("*.*")) == [".json", ".json"]


def test_regions_alone(tmp_path: Path) -> None:
    """As of programs that are not kept: each process makes the program, one the region."""
    assert at_once(tmp_path, programs=False) == [(0, 1, 0)] * (NUMBER - 1) + [(1, 0, 0)]


def test_a_pass_that_fails_lets_the_others_in(tmp_path: Path) -> None:
    began = time.monotonic()
    found = at_once(tmp_path, fails=True)
    assert all("ZeroDivisionError" in text for text in found), found
    assert time.monotonic() - began < disk_locks.LONGEST / 10
    assert not list(tmp_path.rglob("*.*"))
    alone = Process(tmp_path, threading.Event())
    alone.start.set()
    assert alone.counts() == (1, 0, 0)
