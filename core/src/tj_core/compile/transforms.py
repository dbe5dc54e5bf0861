"""Passes over traces: the records that plugins register, and what a pass may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tj_core.compile.codegen import Program
from tj_core.compile.compilation import Compilation
from tj_core.compile.context import PassContext
from tj_core.contract.executors import Decline
from tj_core.ir.stage import Stage
from tj_core.ir.trace import Trace

__all__ = ["Again", "Split", "Transform", "Wrapped"]


@dataclass(frozen=True, slots=True)
class Split:
    """Several programs in the place of one: what a transform that produces SPLIT may return.

    ``trace`` goes on through the pipeline, and its program is handed to ``assemble``, together with
    a function that compiles another trace under a name, at any time and on any thread, to a
    program that takes one list and empties it. What ``assemble`` returns runs in the program's
    place. ``others`` are traces by name, to be shown before they are compiled. ``boxed`` is for the
    program of ``trace``.
    """

    trace: Trace
    others: Mapping[str, Trace]
    assemble: Callable[[Program, Callable[[str, Trace], Program]], Callable[..., Any]]
    boxed: bool = False


class Again(Protocol):
    """Compiles a program once more, when a call needs another form of it than the one that runs."""

    def acquired(self) -> Compilation:
        """The program as it was acquired: no transforms to stages, and every call stays."""
        ...

    def compiled(self, trace: Trace) -> Compilation:
        """``trace``, which stands for the program at stage ACQUIRED, through all passes."""
        ...

    def keep(self, name: str, compilation: Compilation) -> None:
        """Show what ``compilation`` went through under ``name``, beside the program's traces."""
        ...


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A trace, and what to do around its program: what a transform may return for a trace.

    ``trace`` goes on through the pipeline. ``wrap`` gets what runs it, a function of its inputs,
    and returns what runs in its place; for calls that the trace is not right for, it may compile
    the program `Again`.
    ``outer``, if given, is the trace of what ``wrap`` puts around, to be shown.
    """

    trace: Trace
    wrap: Callable[[Callable[..., Any], Again], Callable[..., Any]]
    outer: Trace | None = None


class Apply(Protocol):
    """A transform's work: a trace in, the edited trace out (the same object for no change).

    One that makes a stage may return a `Decline` instead, for a program that it cannot take there,
    and None for one that nobody needs there.
    """

    def __call__(
        self, trace: Trace, context: PassContext, /
    ) -> Trace | Split | Wrapped | Decline | None: ...


@dataclass(frozen=True, slots=True)
class Transform:
    """A pass over traces, run after a stage is reached.

    ``produces`` names the stage the trace has reached when this transform is done, for the owner
    of a stage; None for a transform that stays inside the stage. Inside a stage transforms run in
    the order of their plugins where the config gives one, else by descending ``priority``, then
    by name; those of a `tj.jit` call come after the plugins', by priority, else as given.

    ``falls_back``: a program on which it fails runs without tj, with a warning that names the
    transform; else that is the plugin's error.
    """

    name: str
    apply: Apply
    after: Stage
    produces: Stage | None = None
    priority: int = 0
    falls_back: bool = False
