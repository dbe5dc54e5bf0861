"""The records that plugins register, once per session.

A hook returns records; the session sorts them, checks them for conflicts and stamps them with the
plugin they came from. What runs per call is a lookup in a table built from them, never a hook.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tj_core.errors import PluginError

if TYPE_CHECKING:
    from tj_core.codegen import Program
    from tj_core.jitted import Jitted
    from tj_core.passes import PassContext
    from tj_core.pipeline import Compilation
    from tj_core.rules import RuleTable
    from tj_core.session import Session
    from tj_core.source import Source
    from tj_core.stages import Stage
    from tj_core.symbol import BoundSymbol, Symbol
    from tj_core.trace import Trace

__all__ = [
    "Again",
    "Claim",
    "CliCommand",
    "Decline",
    "Dialect",
    "Executor",
    "Frontend",
    "Fusion",
    "Pair",
    "Split",
    "Transform",
    "Wrapped",
]


@dataclass(frozen=True, slots=True)
class Decline:
    """An answer of no, and why; shown by ``tj.explain``.

    An executor declines a call, a transform a program: that starts again from the acquired trace,
    without the transform and those of its plugin that make later stages. ``source`` is the user's
    line that the reason is found at. ``exact``: errors of calls that nobody needs are
    wanted, too, so that nothing of the program is removed or merged.
    """

    reason: str
    source: Source | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """How an executor runs one symbol forward and backward.

    ``forward`` takes the arguments of the call and returns a pair: what the call returns, and a
    sequence of values to save. ``backward`` takes that sequence as a tuple and a tangent for each
    tensor that the call returns, None for one without, and returns a gradient for each parameter of
    ``forward`` in order: None where there is none, a sequence for a list of tensors; trailing
    Nones may be left out.

    ``meta``, if given, is a pair of functions like these two with the same structure and metadata
    in their results, for an implementation that cannot run on tensors without data.
    """

    forward: Callable[..., tuple[Any, Sequence[Any]]]
    backward: Callable[..., Sequence[Any]]
    meta: tuple[Callable[..., tuple[Any, Sequence[Any]]], Callable[..., Sequence[Any]]] | None = (
        None
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """How an executor runs one symbol.

    ``implementation`` is called with the arguments of the claimed call and returns what the call
    returns, with the metadata that its outputs declare, strides included: calls after it rely on
    them. None is for a fallback executor: the symbol's own callable. ``check`` looks at one
    bound symbol, metadata only, and answers True or a `Decline`; None accepts every call. A claim
    must not depend on anything a guard does not see. ``pair``, if given, is used in place of the
    implementation where a gradient is needed.

    ``shares_regions``: the implementation calls the regions of the call with values as any program
    has them, so other executors may run calls inside. Else (the operation differentiates or
    vectorises its regions) all of a region belongs to the fallback executor.
    """

    implementation: Callable[..., Any] | None
    check: Callable[[BoundSymbol], bool | Decline] | None = None
    pair: Pair | None = None
    shares_regions: bool = False

    def __post_init__(self) -> None:
        if self.pair is not None and self.implementation is None:
            raise PluginError(
                "a claim with a forward/backward pair needs an implementation",
                hint="Claim(implementation, check, pair=Pair(forward, backward))",
            )


@dataclass(frozen=True, slots=True)
class Fusion:
    """What an executor says of calls while the memory of training is planned.

    ``can_fuse`` says whether it would compute a call together with its neighbours, so that values
    between them take no memory, and running the call again there costs next to nothing. ``cost``,
    if given, is an estimate of what running the call again would take, in seconds; None where there
    is none. Both look at metadata only.
    """

    can_fuse: Callable[[BoundSymbol], bool]
    cost: Callable[[BoundSymbol], float | None] | None = None


@dataclass(frozen=True, slots=True)
class Executor:
    """Something that runs calls: a library of kernels, a compiler, a device.

    ``claims`` maps symbols to `Claim`. ``rng`` says whose random numbers its random operations
    consume: ``"torch"`` for PyTorch's generators, ``"own"`` for its own. A ``fallback`` executor
    is asked last and takes whole calls nobody else wanted any part of. ``fusion`` is for an
    executor that computes several calls as one.
    """

    name: str
    claims: RuleTable[Claim]
    rng: Literal["torch", "own"] = "torch"
    fallback: bool = False
    fusion: Fusion | None = None


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
    """

    name: str
    apply: Apply
    after: Stage
    produces: Stage | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Frontend:
    """A way from a user's program to a trace.

    ``accepts`` says whether the frontend wants the object; the first accepting one by descending
    ``priority`` wraps it. ``wrap`` returns what ``tj.jit`` returns: a callable that behaves as the
    object it wraps and carries the `Jitted` it was given as ``__tj__``.
    """

    name: str
    accepts: Callable[[Any], bool]
    wrap: Callable[[Any, Jitted], Any]
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the symbols of one namespace mean as Python.

    ``prelude`` are the import lines that printed programs start with, so that a symbol's printed
    name evaluates; ``resolve`` returns the callable behind a symbol and raises `LookupError` for
    an unknown one. ``entry``, if given, is asked for each call in a program that is to run: for
    another callable that does the same with arguments of these kinds, and takes less time; or None.
    """

    namespace: str
    prelude: tuple[str, ...]
    resolve: Callable[[Symbol], Callable[..., Any]]
    entry: Callable[[BoundSymbol], Callable[..., Any] | None] | None = None


@dataclass(frozen=True, slots=True)
class CliCommand:
    """A subcommand of ``tj``. ``run`` returns the exit status."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Session], int]
