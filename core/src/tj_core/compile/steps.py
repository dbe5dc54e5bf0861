"""Passes that run on one trace, one after another: their traces, times and checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.compile.blame import blaming
from tj_core.compile.failures import own_pass
from tj_core.edit.editor import recorded, timed
from tj_core.errors import TraceError
from tj_core.ir.trace import PassRecord, Trace
from tj_core.verify.kept_writes import check_writes
from tj_core.verify.verifier import Check, level_for, verify

if TYPE_CHECKING:
    import contextlib

    from tj_core.compile.transforms import Ranked
    from tj_core.contract.expansion import Expand
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.stage import Stage
    from tj_core.ir.tags import TagRegistry

__all__ = ["Steps"]


@dataclass
class Steps:
    """The passes that have run on the first of ``traces``, each of which made a later one.

    Each trace is verified at the level ``level``, for the stages ``reached``. ``seconds`` are the
    times of passes by name, ``makers`` the transforms that made traces, by index. ``begin`` is
    called with the name of each pass that begins.
    """

    traces: list[Trace]
    reached: set[Stage]
    expand: RuleTable[Expand]
    tags: TagRegistry
    level: Check
    strict: bool
    seconds: dict[str, float] = field(default_factory=dict)
    makers: dict[int, Ranked] = field(default_factory=dict)
    begin: Callable[[str], None] = field(default=lambda name: None)

    @property
    def latest(self) -> Trace:
        """The trace of the latest pass."""
        return self.traces[-1]

    def check(self, trace: Trace) -> None:
        """Verify ``trace`` at the level of these steps."""
        if self.level:
            start = time.perf_counter()
            verify(
                trace,
                level=level_for(self.level, self.traces[0]),
                tags=self.tags,
                expand=self.expand,
                reached=self.reached,
            )
            self.spend("verify", start)

    def spend(self, name: str, start: float) -> None:
        """Add the seconds since ``start`` to those of pass ``name``."""
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def step(
        self, name: str, plugin: str, apply: Callable[[Trace], Any], maker: Ranked | None = None
    ) -> None:
        """Run a pass, ``maker``'s or tj's own, on the latest trace; append and check its trace."""
        self.begin(name)
        before = self.latest
        start = time.perf_counter()
        after = apply(before)
        seconds = time.perf_counter() - start
        self.spend(name, start)
        if not isinstance(after, Trace):
            whose = maker or f"pass {name!r} of plugin {plugin!r}"
            raise TraceError(
                f"{whose} returned {type(after).__name__}, not a Trace",
                hint="" if maker is None else maker.remedy,
            )
        if after is before:
            return
        if len(after.history) == len(before.history):
            after = recorded(after, PassRecord(name, plugin))
        after = timed(after, seconds)
        if maker is not None:
            self.makers[len(self.traces)] = maker
        self.traces.append(after)
        if self.level:
            check_writes(before, after)
        self.check(after)

    def own_step(self, name: str, apply: Callable[[Trace], Trace]) -> None:
        """Run one of the core's own passes."""
        with self.own(name), self.blaming():
            self.step(name, "core", apply)

    def own(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The context manager around a pass of tj's own: see `own_pass`."""
        self.begin(name)
        return own_pass(name, strict=self.strict)

    def blaming(self) -> contextlib.AbstractContextManager[None]:
        """The context manager around a pass of the core: see `tj_core.compile.blame.blaming`."""
        return blaming(self.traces, self.makers, self.tags, self.strict)
