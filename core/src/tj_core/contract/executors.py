"""Executors, which run calls, and their claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

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
from tj_core.contract.packages import Packaging
from tj_core.contract.rules import Rule, RuleTable
from tj_core.errors import PluginError
from tj_core.ir.symbol import Constant, Symbol
from tj_core.ir.tags import NO_TAGS

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol

__all__ = ["Claim", "Executor", "Pair", "States", "state_keepers", "with_state"]


_STATE = "state:"
"""Prefix of the resource (`Effects.ordered`) that orders an executor's calls with state."""

States: TypeAlias = "dict[tuple[str, str], Constant]"
"""The states of executors' calls, by name of the executor and name for the call."""


def _are_two_functions(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(callable, value))


_TWO_FUNCTIONS = Kind(
    "two functions or None", lambda value: value is None or _are_two_functions(value)
)


@dataclass(frozen=True, slots=True)
class Pair:
    """An executor's implementation of one symbol's forward and backward.

    ``forward`` takes the arguments of the call and returns a pair: the call's results, and a
    sequence of saved values. ``backward`` takes the saved values as a tuple and a tangent for each
    tensor that the call returns, or None, and returns a gradient for each parameter of ``forward``
    in order: None for one without a gradient, a sequence for a list of tensors; trailing Nones may
    be left out.

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
    """An executor's implementation of one symbol.

    ``implementation`` is called with the arguments of the claimed call. It returns the call's
    results with the metadata that the call's outputs declare, strides included, since later calls
    rely on them. None is for a fallback executor: the symbol's own callable. ``check`` looks at one
    bound symbol, metadata only, and answers True or a `Decline`; None accepts every call. A claim
    must not depend on anything that guards do not check. ``pair``, if given, is used in place of
    the implementation where a gradient is needed.

    ``traceable``: the implementation is made of operations that any executor of the dialect can
    trace, so that the call may stand in a region of an executor that `hosts` it.

    ``shares_subprograms``: the implementation calls the call's subprograms with ordinary values, so
    that other executors may run calls inside. If False (the operation differentiates or vectorises
    them), the fallback executor runs the whole subprogram.

    ``state``, if given, makes an object that the implementation keeps from run to run. It is called
    once for each call of a program, with that call. The object is the keyword argument ``state`` of
    every run of the call, of both halves if there is a ``pair``. Programs compiled for other
    arguments have states of their own. The order of an executor's calls with state is kept, and
    none of them is recomputed. Programs run on any thread.
    """

    implementation: Callable[..., Any] | None
    check: Callable[[BoundSymbol], bool | Decline] | None = None
    pair: Pair | None = None
    shares_subprograms: bool = False
    traceable: bool = False
    state: Callable[[BoundSymbol], Any] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            state=OPTIONAL_FUNCTION,
            implementation=OPTIONAL_FUNCTION,
            check=OPTIONAL_FUNCTION,
            pair=of(Pair, optional=True),
            shares_subprograms=FLAG,
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
    """A library of kernels, a compiler or a device that runs calls.

    ``claims`` maps symbols to `Claim`. A ``fallback`` executor comes last and takes whole calls of
    which no other executor takes any part. ``fusion`` is for executors that fuse calls.
    ``decompositions``, for such an executor, maps symbols of calls that its regions take to rules
    of `tj_core.edit.rewrite.rewrite`. They apply before saved values are chosen, so that parts of
    such a call may be saved and others recomputed.
    ``fingerprint``, if given, is a text of everything that checks depend on beside the call, the
    plugin's code and its options: measurements, the machine, settings; None if unknown. Programs
    are kept on disk for processes with the same text.
    ``packaging`` is for executors whose calls may stand in packages.
    ``provider``, which the session fills in, is the registering plugin, with its distribution.
    """

    name: str
    claims: RuleTable[Claim]
    fallback: bool = False
    fusion: Fusion | None = None
    decompositions: RuleTable[Any] | None = None
    fingerprint: Callable[[], str | None] | None = None
    packaging: Packaging | None = None
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
            packaging=of(Packaging, optional=True),
        )

    @property
    def owner(self) -> str:
        """The executor in words, for messages."""
        return f"executor {self.name!r}" + (f" of {self.provider}" if self.provider else "")

    def claim(self, call: BoundSymbol) -> Rule[Claim] | None:
        """The claim for the symbol of ``call``, before its check; None for a fallback executor.

        A claim for an operation is for plain tensors. The key of a claim for a tensor subclass has
        the name of the class before the operation's.
        """
        return None if self.fallback else self.rule(call)

    def rule(self, call: BoundSymbol) -> Rule[Claim] | None:
        """As `claim`, also of a fallback executor, which runs calls on any arguments."""
        if call.on_subclass and not self.fallback:
            return self.claims.of_subclass(call)
        return self.claims.get(call.symbol)

    def symbol(self, call: BoundSymbol, rule: Rule[Claim], half: str = "") -> Symbol:
        """The symbol of ``call`` once this executor has claimed it by ``rule``."""
        whole = call.symbol.qualname if self.fallback or not call.on_subclass else rule.key
        return Symbol(self.name, whole, half)

    def state_of(
        self, call: BoundSymbol, rule: Rule[Claim], states: States, name: str
    ) -> Constant | None:
        """The state of the claim ``rule`` for ``call``, under ``name``; None without a state.

        Made at the first request, and then kept in ``states``.

        :raises PluginError: if the claim's ``state`` function raises.
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
        """The function that runs a claimed ``symbol``, or one half of its pair; None if unknown."""
        rule = self.claims.get(Symbol.parse(symbol.path))
        if rule is not None:
            return rule.value.implementation
        rule = self.claims.get(Symbol.parse(symbol.name))
        if rule is None or rule.value.pair is None:
            return None
        half: Callable[..., Any] | None = getattr(rule.value.pair, symbol.variant, None)
        return half

    def fuses(self, call: BoundSymbol) -> bool:
        """Decide if ``call``, or all of its body, would share a kernel with its neighbours."""
        if self.fusion is None or call.on_subclass:
            return False
        if self.takes_into_regions(call):
            return self.fusion.kernel is None or is_so(self.owner, self.fusion.kernel, call)
        inner = call.body.calls if call.body is not None else ()
        return bool(inner) and all(map(self.fuses, inner))

    def takes_into_regions(self, call: BoundSymbol) -> bool:
        """Decide if ``call`` itself may stand in a region, perhaps as a kernel of its own."""
        if self.fusion is None or call.on_subclass:
            return False
        return ask(self.owner, self.fusion.can_fuse, call) is None

    def claimed(self, call: BoundSymbol) -> bool:
        """Decide if the executor claims ``call``."""
        rule = self.claim(call)
        return rule is not None and ask(self.owner, rule.value.check, call) is None

    def cost(self, call: BoundSymbol) -> float | None:
        """Estimated seconds to run ``call`` again; None if the executor has no estimate."""
        cost = self.fusion.cost if self.fusion is not None else None
        return None if cost is None else answer(self.owner, cost, call)


def with_state(call: BoundSymbol, state: Constant | None) -> BoundSymbol:
    """The executor's ``call`` with the keyword argument ``state``, unless the state is None."""
    if state is None:
        return call
    ordered = (*call.effects.ordered, f"{_STATE}{call.executor}")
    effects = replace(call.effects, ordered=ordered)
    return call.replace(kwargs=(*call.kwargs, ("state", state)), effects=effects)


def state_keepers(call: BoundSymbol) -> list[str]:
    """Names of the executors that keep state for ``call``, or for a part of it, between runs."""
    ordered = call.effects.ordered
    return [r.removeprefix(_STATE) for r in ordered if r.startswith(_STATE)]
