"""Choice of a call's gradient: an executor's pair, a plugin's rule, else PyTorch's own autograd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Change,
    Decline,
    Effects,
    Executor,
    PassContext,
    Rule,
    RuleTable,
    States,
    SubclassInfo,
    Symbol,
    TensorProxy,
)
from tj_torch.extend import Derivation, ExpansionError, TorchDialects
from tj_torch.internal import WRITES_BACK, Modes, Unkeyable, call_key, tangents_key

from tj_autograd.joint.build import Differentiated, JointScope, NotDifferentiable, Slots
from tj_autograd.joint.builtin import BUILTIN
from tj_autograd.joint.derivation_calls import differentiated, slots_of_arguments
from tj_autograd.joint.functions import (
    APPLY,
    keeps_others,
    plain_call,
    with_own_body,
    without_gradient,
)
from tj_autograd.joint.pairs import Declined, find_pair, paired
from tj_autograd.joint.recordings import RECORDED, recorded, symbolic_power
from tj_autograd.joint.rules import GradRule, apply_rule, find_rule

__all__ = ["Lookup", "Owner"]

Owner = tuple[str, str]
"""Owner of a gradient (executor or plugin), and the key that it is registered under."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Differentiates calls by the first rule that applies.

    The order: pairs of executors, table ``grad``, table ``grad-builtin``, the backward of an
    ``autograd.Function``, a recorded graph, a derivation from PyTorch's autograd. ``states`` are
    the constants that executors keep for calls. ``kept_whole`` maps the label of a call that was
    not decomposed to the reasons. ``applied`` caches derivations of equal calls.
    """

    dialects: TorchDialects
    rules: RuleTable[GradRule]
    builtin: RuleTable[GradRule]
    recorded: RuleTable[str]
    modes: Modes
    executors: Sequence[Executor]
    states: States
    kept_whole: Mapping[str, Declined] = field(default_factory=dict)
    applied: dict[tuple[Any, ...], tuple[Derivation, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, context: PassContext) -> Lookup:
        """Make the lookup from the tables and executors of ``context``."""
        dialects = context.expand.require(BoundSymbol(Symbol("torch", "add"))).value
        assert isinstance(dialects, TorchDialects)
        names = ("grad", BUILTIN, RECORDED)
        rules, builtin, kept = (context.tables.get(n) or RuleTable(n) for n in names)
        modes = dialects.modes()
        return cls(dialects, rules, builtin, kept, modes, context.executors, context.states)

    def records(self, call: BoundSymbol) -> bool:
        """Check that the graph of ``call`` is recorded, for itself or for a call in its body."""
        return self._recording(call) is not None

    def others(self) -> bool:
        """Check that a plugin or an executor has any gradient."""
        claims = (rule for e in self.executors if not e.fallback for rule in e.claims)
        return len(self.rules) > 0 or any(rule.value.pair for rule in claims)

    def owners(self, call: BoundSymbol) -> tuple[str, ...]:
        """Names of the executors and plugins that have a gradient registered for the symbol of
        ``call``.
        """
        claims = ((e.name, e.claim(call)) for e in self.executors)
        pairs = (name for name, rule in claims if rule is not None and rule.value.pair)
        rule = self.rules.of(call)
        return (*pairs, *([] if rule is None else [rule.plugin]))

    def above_operators(self) -> bool:
        """Check that one of these gradients is for a function above aten operators."""
        claims = (rule for e in self.executors if not e.fallback for rule in e.claims)
        keys = (*(r.key for r in self.rules), *(r.key for r in claims if r.value.pair))
        return any(not key.startswith("aten.") for key in keys)

    def whole(self, call: BoundSymbol) -> tuple[Owner | None, Declined]:
        """Find the owner of a gradient for ``call`` itself, PyTorch's autograd aside.

        Returns the owner, or None, and the reasons of those that declined before it.
        """
        pair, declined = find_pair(call, self.executors)
        if pair is not None:
            return (pair[0].name, pair[1].key), declined
        for table in (self.rules, self.builtin):
            rule, before = find_rule(call, table)
            if rule is not None:
                return (rule.plugin, rule.key), declined
            # Built-in rules are tj's own: that one does not apply is nothing for the user to mend.
            declined += before if table is self.rules else ()
        return None, declined

    def __call__(self, call: BoundSymbol, slots: Slots, scope: JointScope) -> Differentiated:
        """Differentiate ``call`` for the cotangents in ``slots``."""
        # Loops and branches: which functions run, and how often, depends on data.
        if call.subprograms and call.symbol.qualname != APPLY:
            return recorded(call, slots, scope, "it runs functions of the program's")
        declined: list[tuple[str, str]] = [*self.kept_whole.get(call.label, ())]
        done = (
            self._by_pair(call, slots, scope, declined)
            or self._by_rule(self.rules, call, slots, scope, declined)
            or self._by_rule(self.builtin, call, slots, scope, [])
            or self._by_function(call, slots, scope)
            or self._by_autograd(call, slots, scope)
            or self._derived(call, slots, scope)
        )
        return replace(done, change=replace(done.change, declined=tuple(declined)))

    def _by_pair(
        self, call: BoundSymbol, slots: Slots, scope: JointScope, declined: list[tuple[str, str]]
    ) -> Differentiated | None:
        pair, before = find_pair(call, self.executors)
        declined += before
        if pair is None:
            return None
        try:
            memo, sizes = self.dialects.memo, self.dialects.sizes
            return paired(call, *pair, slots, scope, memo.expander, sizes, self.states)
        except CannotExpandError as error:
            declined.append((pair[0].name, error.message))
            return None

    def _by_rule(
        self,
        rules: RuleTable[GradRule],
        call: BoundSymbol,
        slots: Slots,
        scope: JointScope,
        declined: list[tuple[str, str]],
    ) -> Differentiated | None:
        rule, before = find_rule(call, rules)
        declined += before
        if rule is None:
            return None
        try:
            made = self._applied(call, rule, slots)
        except CannotExpandError as error:
            declined.append((rule.plugin, error.message))
            return None
        change = Change(call.label, rule.plugin, rule.key, rule.origin)
        return differentiated(call, made, slots, scope, change)

    def _by_function(
        self, call: BoundSymbol, slots: Slots, scope: JointScope
    ) -> Differentiated | None:
        if call.symbol.qualname != APPLY:
            return None
        if kept := keeps_others(call):
            return recorded(call, slots, scope, kept, without_gradient(call))
        plain, function = plain_call(call)
        try:
            # No name resolves to the Function: it is given beside the call.
            rule = self.dialects.derive(plain, self.modes, slots, function=function)
        except CannotExpandError as error:
            return self._left(call, slots, scope, error)
        change = Change(call.label, "autograd", "its own backward")
        made = differentiated(with_own_body(plain, rule), rule, slots, scope, change)
        return replace(made, backward=(*_checks(call, scope), *made.backward))

    def _by_autograd(
        self, call: BoundSymbol, slots: Slots, scope: JointScope
    ) -> Differentiated | None:
        reason = self._recording(call)
        return None if reason is None else recorded(call, slots, scope, reason)

    def _recording(self, call: BoundSymbol) -> str | None:
        """The reason to record the graph of ``call``, or None."""
        for part in (call, *(call.body.calls if call.body is not None else ())):
            if (rule := self.recorded.get(part.symbol)) is not None:
                return rule.value
            if symbolic_power(part):
                return "its exponent is a symbol"
        return None

    def _applied(self, call: BoundSymbol, rule: Rule[GradRule], slots: Slots) -> Derivation:
        """Apply ``rule``, once for equal calls: a layer repeated thirty times is run once."""
        expander, sizes = self.dialects.memo.expander, self.dialects.sizes
        fn = rule.value.forward
        try:
            key, alive, symbols = call_key(fn, call.args, dict(call.kwargs), call.context, rule.key)
        except Unkeyable:
            return apply_rule(rule, call, slots, expander, sizes)
        # With names of symbols: these are sizes of one program.
        laid_out = ((*map(str, p.shape), *map(str, p.strides)) for p in slots.values())
        key = (*key, symbols, *tangents_key(slots, ()), *laid_out)
        if key not in self.applied:
            self.applied[key] = apply_rule(rule, call, slots, expander, sizes), alive
        return self.applied[key][0]

    def _derived(self, call: BoundSymbol, slots: Slots, scope: JointScope) -> Differentiated:
        try:
            rule = self.dialects.derive(call, self.modes, slots)
        except CannotExpandError as error:
            return self._left(call, slots, scope, error)
        if more := slots_of_arguments(call, rule, scope):
            slots = {**slots, **more}
            rule = self.dialects.derive(call, self.modes, slots)
        change = Change(call.label, "autograd", "derived")
        return differentiated(call, rule, slots, scope, change)

    def _left(
        self, call: BoundSymbol, slots: Slots, scope: JointScope, error: CannotExpandError
    ) -> Differentiated:
        """Record ``call``, which cannot be derived because of ``error``, when it runs.

        :raises NotDifferentiable: if its backward writes to a tensor that others may read, or it
            returns a tensor subclass that cannot be detached from PyTorch's graph.
        """
        if WRITES_BACK in error.message:
            raise NotDifferentiable(Decline(f"{call.symbol}: {WRITES_BACK}", call.source))
        for result in call.flat_outs:
            if isinstance(result, TensorProxy) and result.subclass is not None:
                self._check_detach(call, result, result.subclass)
        return recorded(call, slots, scope, error.message)

    def _check_detach(self, call: BoundSymbol, result: TensorProxy, info: SubclassInfo) -> None:
        """Check that ``result``, a tensor subclass, can be detached from the graph of ``call``.

        :raises NotDifferentiable: if it cannot, or that is unknown.
        """
        unknown = f"how a {info.type} is made" if info.state is None else ""
        try:
            self.dialects.memo.expand(torch.Tensor.detach, (result,), {}, call.context, self.modes)
        except ExpansionError as error:
            unknown = f"how to detach it: {error}"
        except CannotExpandError:
            pass  # symbolic sizes, say: known at run time
        if unknown:
            reason = f"{call.symbol}: it is not known {unknown}"
            raise NotDifferentiable(Decline(reason, call.source))


def _checks(call: BoundSymbol, scope: JointScope) -> Iterator[BoundSymbol]:
    """Yield the call that checks the constants which the backward of a Function reads, if any."""
    reads = dict(call.kwargs).get("reads")
    if reads is not None:
        made = scope.backward(call, Symbol("tj", "check_reads"), reads)
        yield made.replace(effects=Effects(ordered=("side_effect",)))
