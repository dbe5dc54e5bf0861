"""The context of a pass: the tables and registries of its session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tj_core.compile.outcome import NOT_KEPT, Assemble, Assembly, Outcome, Wrap, Wrapper
from tj_core.edit.rewrite import RewriteRule, rewrite

if TYPE_CHECKING:
    from tj_core.contract.decline import Decline
    from tj_core.contract.executors import Executor, States
    from tj_core.contract.expansion import Expand
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.stage import Stage
    from tj_core.ir.tags import TagRegistry
    from tj_core.ir.trace import Trace

__all__ = ["PassContext"]


@dataclass(frozen=True, slots=True)
class PassContext:
    """The argument of every transform: its name and plugin; the session's tables, tags, executors.

    ``earlier`` are the traces of the passes before, the acquired one first; ``produced`` the stages
    that a transform of this pipeline produces. ``strict`` is the config's. ``states`` are the
    states of claims for calls of the program: see `Claim`.

    ``reason`` says why the program is compiled although an earlier one exists: the guard that
    failed, in words; empty for the first program. A finished program on disk is found for any
    reason, so only transforms after CLAIMED may depend on it.

    ``complete`` is true for a program that is written to a package: what a transform declines is
    not in it.

    The context has no state. A transform decides by its return value: an edited trace, or an
    `Outcome` that one of the methods below makes.
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
    reason: str = ""
    complete: bool = False

    def decline(self, answer: Decline) -> Outcome:
        """The outcome that declines the program.

        Compilation starts again from the acquired trace, without this transform and without those
        of the same plugin that make later stages. `tj.explain` shows the reason.
        """
        return Outcome(self.earlier[-1], declined=answer)

    def skip_stage(self) -> Outcome:
        """The outcome that leaves out the stage that the transform produces."""
        return Outcome(self.earlier[-1], skipped=True)

    def assemble(
        self,
        trace: Trace | Outcome,
        others: Mapping[str, Trace],
        assemble: Assemble,
        *,
        boxed: bool = False,
        flexible: Collection[str] = frozenset(),
        kept: Any = NOT_KEPT,
    ) -> Outcome:
        """The outcome ``trace``, with a function around several programs in the program's place.

        ``assemble`` gets two arguments: the program of ``trace``, and a function that compiles
        another trace under a name, at any time and on any thread, to a program that takes one list
        and empties it. It returns the function to call in the program's place. ``others`` are
        traces by name, shown until they are compiled. ``boxed`` is for the program of ``trace``.

        ``flexible`` are values that this program returns only for inputs of the same name in the
        other programs. Executors may choose their strides. If another executor reads such a value,
        the program gets a copy with the declared strides. `Program.inputs` have the actual strides.

        ``kept`` is the argument with which `Transform.restore` repeats this call in another
        process: a tree of traces, proxies, texts and numbers. Without it, the program is not kept
        on disk.
        """
        assembly = Assembly(others, assemble, boxed, flexible, kept)
        return replace(Outcome.of(trace), assembly=assembly)

    def wrap(
        self,
        trace: Trace | Outcome,
        wrap: Wrap,
        epilogue: Trace | None = None,
        *,
        kept: Any = NOT_KEPT,
    ) -> Outcome:
        """The outcome ``trace``, with a function around the program.

        ``wrap`` gets the function of the program's inputs and a `Recompiler` for calls that the
        trace does not fit, and returns the function to call instead. ``epilogue``, if given, is a
        trace of the code around the program, to be shown. ``kept``: see `assemble`.
        """
        said = Outcome.of(trace)
        return replace(said, wrappers=(*said.wrappers, Wrapper(wrap, epilogue, kept)))

    def rewrite(
        self,
        trace: Trace,
        rules: RuleTable[RewriteRule],
        *,
        into_bodies: bool = True,
        into_subprograms: bool = True,
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
            into_subprograms=into_subprograms,
        )
