"""Who runs calls: executors, their claims, and what they say of fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.contract.rules import Rule, RuleTable
from tj_core.errors import PluginError
from tj_core.ir.trace import BoundSymbol
from tj_core.source import Source

__all__ = ["Claim", "Decline", "Executor", "Fusion", "Pair"]


@dataclass(frozen=True, slots=True)
class Decline:
    """An answer of no, and why; shown by ``tj.explain``.

    An executor declines a call, a transform a program: that starts again from the acquired trace,
    without the transform and those of its plugin that make later stages. ``source`` is the user's
    line that the reason is found at. ``keep_all_calls``: errors of calls that nobody needs
    are wanted, too, so that nothing of the program is removed or merged.
    """

    reason: str
    source: Source | None = None
    keep_all_calls: bool = False


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

    ``claims`` maps symbols to `Claim`. A ``fallback`` executor is asked last and takes whole calls
    nobody else wanted any part of. ``fusion`` is for one that computes several calls as one.
    """

    name: str
    claims: RuleTable[Claim]
    fallback: bool = False
    fusion: Fusion | None = None

    def claim(self, call: BoundSymbol) -> Rule[Claim] | None:
        """The claim that ``call`` may be taken by, if its check agrees; None for a fallback's.

        Claims are for plain tensors: a call of tensor subclasses is the fallback's.
        """
        return None if self.fallback or call.on_subclass else self.claims.get(call.symbol)

    def fuses(self, call: BoundSymbol) -> bool:
        """Whether ``call`` would be computed together with its neighbours."""
        return self.fusion is not None and not call.on_subclass and self.fusion.can_fuse(call)
