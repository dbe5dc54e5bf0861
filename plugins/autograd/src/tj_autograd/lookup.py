"""Whose gradient a call gets: an executor's pair, a plugin's rule, else PyTorch's own autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tj_core.errors import CannotExpandError
from tj_core.passes import PassContext
from tj_core.records import Executor
from tj_core.rules import Rule, RuleTable
from tj_core.symbol import BoundSymbol, Symbol
from tj_core.trace import Change
from tj_torch.dialect.modes import Modes
from tj_torch.dialects import TorchDialects

from tj_autograd.derived import differentiated, slots_of_arguments
from tj_autograd.joint import Differentiated, Slots, Workshop
from tj_autograd.pairs import find_pair, paired
from tj_autograd.recorded import recorded
from tj_autograd.rules import GradRule, apply_rule, find_rule

__all__ = ["Lookup"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """Differentiates calls by the first rule that there is."""

    dialects: TorchDialects
    rules: RuleTable[GradRule]
    modes: Modes
    executors: Sequence[Executor]

    @classmethod
    def of(cls, context: PassContext) -> Lookup:
        """The lookup in the tables of ``context``."""
        dialects = context.expand.require(BoundSymbol(Symbol("torch", "add"))).value
        assert isinstance(dialects, TorchDialects)
        rules = context.tables.get("grad") or RuleTable("grad")
        return cls(dialects, rules, dialects.modes(), context.executors)

    def __call__(self, call: BoundSymbol, slots: Slots, workshop: Workshop) -> Differentiated:
        """``call`` with its gradient."""
        pair, declined = find_pair(call, self.executors)
        if pair is None:
            rule, more = find_rule(call, self.rules)
            declined += more
        try:
            if pair is not None:
                expander = self.dialects.memo.expander
                done = paired(call, *pair, slots, workshop, expander)
            elif rule is not None:
                done = self._by_rule(call, rule, slots, workshop)
            else:
                done = self._derived(call, slots, workshop)
        except CannotExpandError as error:
            done = recorded(call, slots, workshop, error.message)
        return replace(done, change=replace(done.change, declined=declined))

    def _by_rule(
        self, call: BoundSymbol, rule: Rule[GradRule], slots: Slots, workshop: Workshop
    ) -> Differentiated:
        made = apply_rule(rule, call, slots, self.dialects.memo.expander)
        change = Change(call.label, rule.plugin, rule.key, rule.origin)
        return differentiated(call, made, slots, workshop, change)

    def _derived(self, call: BoundSymbol, slots: Slots, workshop: Workshop) -> Differentiated:
        rule = self.dialects.derive(call, self.modes, slots)
        if more := slots_of_arguments(call, rule, workshop):
            slots = {**slots, **more}
            rule = self.dialects.derive(call, self.modes, slots)
        change = Change(call.label, "autograd", "derived")
        return differentiated(call, rule, slots, workshop, change)
