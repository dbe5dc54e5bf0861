"""Who runs calls: executors and their claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tj_core.contract.decline import Decline, answer, ask, is_so
from tj_core.contract.fields import (
    FLAG,
    FUNCTION,
    NAME,
    OPTIONAL_FUNCTION,
    Kind,
    check_fields,
    of,
)
from tj_core.contract.fusion import Fusion
from tj_core.contract.rules import Rule, RuleTable
from tj_core.errors import PluginError
from tj_core.ir.symbol import Constant, Symbol
from tj_core.ir.tags import NO_TAGS
from tj_core.ir.trace import BoundSymbol

__all__ = ["STATE", "Claim", "Executor", "Pair", "States", "with_state"]


STATE = "state:"
"""What begins the name of the resource that an executor's calls with state are ordered by."""

States: TypeAlias = "dict[tuple[str, str], Constant]"
"""What executors keep for calls, by the name of the executor and a name for the call."""


def _are_two_functions(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(callable, value))


_TWO_FUNCTIONS = Kind(
    "two functions or None", lambda value: value is None or _are_two_functions(value)
)


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

    def __post_init__(self) -> None:
        check_fields(self, forward=FUNCTION, backward=FUNCTION, meta=_TWO_FUNCTIONS)


@dataclass(frozen=True, slots=True)
class Claim:
    """How an executor runs one symbol.

    ``implementation`` is called with the arguments of the claimed call and returns what the call
    returns, with the metadata that its outputs declare, strides included: calls after it rely on
    them. None is for a fallback executor: the symbol's own callable. ``check`` looks at one
    bound symbol, metadata only, and answers True or a `Decline`; None accepts every call. A claim
    must not depend on anything a guard does not see. ``pair``, if given, is used in place of the
    implementation where a gradient is needed.

    ``traceable``: the implementation is made of operations that any executor of the dialect can
    trace, so that the call may stand in a region of an executor that `hosts` it.

    ``shares_regions``: the implementation calls the regions of the call with values as any program
    has them, so other executors may run calls inside. Else (the operation differentiates or
    vectorises its regions) all of a region belongs to the fallback executor.

    ``state`` makes what the implementation keeps from run to run: it is called once for each call
    of a program, with the call, and what it returns is the keyword argument ``state`` of every run
    of that call, of both halves where there is a ``pair``. Programs compiled for other arguments
    have states of their own; a call keeps its place among the executor's others, and runs again
    nowhere. Programs run on any thread.
    """

    implementation: Callable[..., Any] | None
    check: Callable[[BoundSymbol], bool | Decline] | None = None
    pair: Pair | None = None
    shares_regions: bool = False
    traceable: bool = False
    state: Callable[[BoundSymbol], Any] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            state=OPTIONAL_FUNCTION,
            implementation=OPTIONAL_FUNCTION,
            check=OPTIONAL_FUNCTION,
            pair=of(Pair, optional=True),
            shares_regions=FLAG,
            traceable=FLAG,
        )
        if self.pair is not None and self.implementation is None:
            raise PluginError(
                "a claim with a forward/backward pair needs an implementation",
                hint="Claim(implementation, check, pair=Pair(forward, backward))",
            )
        if self.state is not None and (self.implementation is None or self.traceable):
            raise PluginError(
                "a claim that keeps state needs an implementation that is not traceable: a region "
                "of another executor runs it while it is compiled, and never again",
                hint="Claim(implementation, check, state=make_state)",
            )


@dataclass(frozen=True, slots=True)
class Executor:
    """Something that runs calls: a library of kernels, a compiler, a device.

    ``claims`` maps symbols to `Claim`. A ``fallback`` executor is asked last and takes whole calls
    nobody else wanted any part of. ``fusion`` is for one that computes several calls as one.
    ``decompositions``, for such a one, maps symbols of calls that it would fuse to rules, as
    `tj_core.edit.rewrite.rewrite` takes them: what a rule puts in the call's place is seen where
    saved values are chosen, so that parts of the call may be saved and others run again.
    ``fingerprint``, if given, says as text what checks depend on beside the call, the plugin's code
    and its options: what was measured, the machine, settings; None where that cannot be said.
    Programs are kept on disk for processes in which it says the same.
    ``provider``, which the session fills in, is the plugin that registered it, with distribution.
    """

    name: str
    claims: RuleTable[Claim]
    fallback: bool = False
    fusion: Fusion | None = None
    decompositions: RuleTable[Any] | None = None
    fingerprint: Callable[[], str | None] | None = None
    provider: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_fields(
            self,
            name=NAME,
            claims=of(RuleTable),
            fallback=FLAG,
            fusion=of(Fusion, optional=True),
            decompositions=of(RuleTable, optional=True),
            fingerprint=OPTIONAL_FUNCTION,
        )

    @property
    def owner(self) -> str:
        """The executor in words, for messages."""
        return f"executor {self.name!r}" + (f" of {self.provider}" if self.provider else "")

    def claim(self, call: BoundSymbol) -> Rule[Claim] | None:
        """The claim that ``call`` may be taken by, if its check agrees; None for a fallback's.

        Claims for an operation are for plain tensors; for one on a tensor subclass they have the
        name of the class before that of the operation.
        """
        return None if self.fallback else self.rule(call)

    def rule(self, call: BoundSymbol) -> Rule[Claim] | None:
        """As `claim`, of a fallback, too, which runs calls on whatever they are given."""
        if call.on_subclass and not self.fallback:
            return self.claims.of_subclass(call)
        return self.claims.get(call.symbol)

    def symbol(self, call: BoundSymbol, rule: Rule[Claim], half: str = "") -> Symbol:
        """What ``call`` is called when the executor has it, by ``rule``."""
        whole = call.symbol.qualname if self.fallback or not call.on_subclass else rule.key
        return Symbol(self.name, whole, half)

    def state_of(
        self, call: BoundSymbol, rule: Rule[Claim], states: States, name: str
    ) -> Constant | None:
        """What the claim ``rule`` keeps for ``call``, under ``name``; None if it keeps nothing.

        It is made unless ``states`` have it.

        :raises PluginError: if it cannot be made.
        """
        make = rule.value.state
        if make is None:
            return None
        # Programs for other tangents may give the same name to another call.
        values = [p.replace(name="", tags=NO_TAGS) for p in (*call.flat_args, *call.flat_outs)]
        key = (self.name, f"{name}: {call.symbol} {values}")
        if key not in states:
            states[key] = Constant(f"_{name}", answer(self.owner, make, call), named=False)
        return states[key]

    def implementation(self, symbol: Symbol) -> Callable[..., Any] | None:
        """What runs ``symbol``, a call that the executor has claimed, or a half of its pair."""
        rule = self.claims.get(Symbol.parse(symbol.path))
        if rule is not None:
            return rule.value.implementation
        rule = self.claims.get(Symbol.parse(symbol.name))
        if rule is None or rule.value.pair is None:
            return None
        half: Callable[..., Any] | None = getattr(rule.value.pair, symbol.variant, None)
        return half

    def fuses(self, call: BoundSymbol) -> bool:
        """Whether ``call``, or all of its body, would be computed together with its neighbours."""
        if self.fusion is None or call.on_subclass:
            return False
        if ask(self.owner, self.fusion.can_fuse, call) is None:
            return self.fusion.kernel is None or is_so(self.owner, self.fusion.kernel, call)
        inner = call.body.calls if call.body is not None else ()
        return bool(inner) and all(map(self.fuses, inner))

    def cost(self, call: BoundSymbol) -> float | None:
        """What running ``call`` again takes, in seconds, if the executor says it."""
        cost = self.fusion.cost if self.fusion is not None else None
        return None if cost is None else answer(self.owner, cost, call)


def with_state(call: BoundSymbol, state: Constant | None) -> BoundSymbol:
    """The executor's ``call`` with ``state``, if that is not None, as a keyword argument."""
    if state is None:
        return call
    ordered = (*call.effects.ordered, f"{STATE}{call.executor}")
    effects = replace(call.effects, ordered=ordered)
    return call.replace(kwargs=(*call.kwargs, ("state", state)), effects=effects)
