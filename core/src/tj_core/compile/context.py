"""What a pass may use: the tables and registries of the session it runs in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tj_core.compile.outcome import NOT_KEPT, Assemble, Assembly, Outcome, Wrap, Wrapper
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Executor, States
from tj_core.contract.expansion import Expand
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import RewriteRule, rewrite
from tj_core.ir.stage import Stage
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import Trace

__all__ = ["PassContext"]


@dataclass(frozen=True, slots=True)
class PassContext:
    """Handed to every transform: its name and plugin; the session's tables, tags, executors.

    ``earlier`` are the traces that the passes before made, the acquired one first; ``produced`` the
    stages that some transform of this pipeline takes traces to. ``strict`` is the config's.
    ``states`` are what executors keep for calls of the program: see `Executor.with_state`.
    ``outcome`` holds what the transform has said through the methods below.
    """

    name: str
    plugin: str
    expand: RuleTable[Expand]
    tags: TagRegistry
    tables: dict[str, RuleTable[Any]]
    executors: Sequence[Executor] = ()
    earlier: tuple[Trace, ...] = ()
    produced: frozenset[Stage] = frozenset()
    strict: bool = False
    states: States = field(default_factory=dict, compare=False)
    outcome: Outcome = field(default_factory=Outcome, compare=False)

    def decline(self, answer: Decline) -> Trace:
        """Say that the transform cannot take the program; returns the trace that it was given.

        The program is compiled from its acquired trace, without this transform and without those
        of the same plugin that make later stages. `tj.explain` shows why.
        """
        self.outcome.declined = answer
        return self.earlier[-1]

    def skip_stage(self) -> Trace:
        """Say that nobody needs the stage that the transform produces; returns the trace."""
        self.outcome.skipped = True
        return self.earlier[-1]

    def assemble(
        self,
        others: Mapping[str, Trace],
        assemble: Assemble,
        *,
        boxed: bool = False,
        flexible: Collection[str] = frozenset(),
        kept: Any = NOT_KEPT,
    ) -> None:
        """Say that several programs run in the place of one.

        The program of the trace that the transform returns is handed to ``assemble``, together
        with a function that compiles another trace under a name, at any time and on any thread,
        to a program that takes one list and empties it. What ``assemble`` returns runs in the
        program's place. ``others`` are traces by name, to be shown before they are compiled.
        ``boxed`` is for the program of the returned trace.

        ``flexible`` are values that this program returns and that reach nobody but inputs of the
        same name in the other programs. Executors may choose their strides; a program that
        another executor reads them in gets copies laid out as its trace says. `Program.inputs` are
        as they come.

        ``kept`` is what `Transform.restore` says the same from in another process: a tree of
        traces, proxies, texts and numbers. Without it, the program is not kept on disk.
        """
        self.outcome.assembly = Assembly(others, assemble, boxed, flexible, kept)

    def wrap(self, wrap: Wrap, epilogue: Trace | None = None, *, kept: Any = NOT_KEPT) -> None:
        """Say what runs around the program.

        ``wrap`` gets what runs the program, a function of its inputs, and a `Recompiler` for calls
        that the trace is not right for; it returns what runs in its place. ``epilogue``, if given,
        is the trace of what it puts around, to be shown. ``kept``: see `assemble`.
        """
        self.outcome.wrappers.append(Wrapper(wrap, epilogue, kept))

    def rewrite(
        self,
        trace: Trace,
        rules: RuleTable[RewriteRule],
        *,
        into_bodies: bool = True,
        into_regions: bool = True,
    ) -> Trace:
        """`tj_core.edit.rewrite.rewrite` in this pass's name."""
        return rewrite(
            trace,
            rules,
            expand=self.expand,
            tags=self.tags,
            name=self.name,
            plugin=self.plugin,
            into_bodies=into_bodies,
            into_regions=into_regions,
        )
