"""Passes over traces: the records that plugins register, and the outcomes of one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tj_core.contract.fields import (
    FLAG,
    FUNCTION,
    NAME,
    NUMBER,
    OPTIONAL_FUNCTION,
    check_fields,
    of,
)
from tj_core.errors import how_to_disable
from tj_core.ir.stage import Stage

if TYPE_CHECKING:
    from tj_core.compile.context import PassContext
    from tj_core.compile.outcome import Assembly, Outcome, Wrapper
    from tj_core.contract.decline import Decline
    from tj_core.contract.packages import TrainingParts
    from tj_core.ir.trace import Trace

__all__ = ["USER", "Outcomes", "Ranked", "Transform", "without"]

USER = "user"
"""The plugin of transforms that a call of `tj.jit` was given."""


class Apply(Protocol):
    """A function from a trace to the edited trace; the same object for no change.

    It may also return an `Outcome`, which methods of the context make.
    """

    def __call__(self, trace: Trace, context: PassContext, /) -> Trace | Outcome: ...


@dataclass(frozen=True, slots=True)
class Transform:
    """A pass over traces, run after a stage is reached.

    ``produces`` is the stage that the trace has reached after this transform, for the owner of a
    stage; None for a transform that stays inside the stage. Inside a stage, transforms run in the
    order of their plugins if the config gives one, else by descending ``priority``, then by name;
    those that produce a stage come last of these. The transforms of a `tj.jit` call come after all
    of the plugins', by priority, else as given.

    ``falls_back``: a program on which the transform fails runs without tj, with a warning that
    names the transform; if False, the failure is the plugin's error. ``reads`` names tags that only
    transforms read: frontends put `STATIC_MEMORY_LOCATION` on the inputs of a program only if a
    transform reads it.

    ``restore`` is for a transform after FUNCTIONAL that calls `PassContext.assemble` or
    `PassContext.wrap` with ``kept``. In a process that finds the finished program on disk, it is
    called in place of ``apply``, with the context and the value of ``kept``, and returns the
    outcome. The trace of the outcome is not used, since the finished one is on disk.

    ``training`` is for a transform that assembles a forward and a backward: for a value of ``kept``
    it returns how they are put together in a package, or declines.
    """

    name: str
    apply: Apply
    after: Stage
    produces: Stage | None = None
    priority: int = 0
    falls_back: bool = False
    reads: frozenset[str] = frozenset()
    restore: Callable[[PassContext, Any], Outcome] | None = None
    training: Callable[[Any], TrainingParts | Decline] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            name=NAME,
            apply=FUNCTION,
            after=of(Stage),
            produces=of(Stage, optional=True),
            priority=NUMBER,
            falls_back=FLAG,
            reads=of(frozenset),
            restore=OPTIONAL_FUNCTION,
            training=OPTIONAL_FUNCTION,
        )


@dataclass(frozen=True, slots=True)
class Ranked:
    """A transform and the plugin that registered it, `USER` for those of a `tj.jit` call.

    ``provider`` is the plugin with its distribution, in words.
    """

    plugin: str
    transform: Transform
    provider: str = ""

    def __str__(self) -> str:
        """The transform and its plugin, for messages."""
        if self.plugin == USER:
            return f"transform {self.transform.name!r} of the call (transforms=)"
        whose = self.provider or f"plugin {self.plugin!r}"
        return f"transform {self.transform.name!r} of {whose}"

    @property
    def remedy(self) -> str:
        """The hint of errors that the transform has caused."""
        if self.plugin == USER:
            return "mend it, or leave it out of transforms="
        return how_to_disable(self.plugin)


def without(transforms: Sequence[Ranked], declined: Ranked) -> tuple[Ranked, ...]:
    """``transforms`` without ``declined`` and those of its plugin that make later stages."""

    def builds_on_it(ranked: Ranked) -> bool:
        made, missing = ranked.transform.produces, declined.transform.produces
        if ranked.plugin != declined.plugin or made is None or missing is None:
            return ranked is declined
        return made >= missing

    return tuple(ranked for ranked in transforms if not builds_on_it(ranked))


@dataclass
class Outcomes:
    """The outcomes of the transforms of one run, in order.

    ``payloads`` are their names and what they keep on disk; ``declined`` is the transform that
    declined the program, with its answer.
    """

    answers: list[Outcome] = field(default_factory=list)
    payloads: list[tuple[str, Any]] = field(default_factory=list)
    declined: tuple[Ranked, Decline] | None = None

    def add(self, ranked: Ranked, outcome: Outcome) -> None:
        """Add the outcome of a transform that ran."""
        if outcome.declined is not None:
            self.declined = ranked, outcome.declined
        self.answers.append(outcome)
        self.payloads += [(ranked.transform.name, payload) for payload in outcome.kept()]

    def restore(self, outcomes: Collection[Outcome], payloads: Collection[tuple[str, Any]]) -> None:
        """Add the outcomes of transforms that ran in another process."""
        self.answers += outcomes
        self.payloads += payloads

    @property
    def assembly(self) -> Assembly | None:
        """The latest assembly that a transform made."""
        return next((said.assembly for said in reversed(self.answers) if said.assembly), None)

    @property
    def wrappers(self) -> list[Wrapper]:
        """The functions around the program, the innermost first."""
        return [wrapper for said in self.answers for wrapper in said.wrappers][::-1]
