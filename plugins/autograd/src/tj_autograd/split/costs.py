"""Cost of recomputing a call: an executor's figure, else an estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Executor,
    PassContext,
    Proxy,
    RuleTable,
    leaves,
    makes_views,
)
from tj_core.internal import state_keepers
from tj_torch.extend import byte_size, multiplies, operations

from tj_autograd.joint.repeatable import REPEATABLE
from tj_autograd.split.arithmetic import BYTES_PER_SECOND, operators
from tj_autograd.split.cheap import RECOMPUTE, cheap

__all__ = ["Costs", "estimate", "may_multiply"]

OPERATIONS_PER_SECOND = 2e11
"""Arithmetic throughput of a processor, a typical value, matching `BYTES_PER_SECOND`."""

NETWORK = 10
"""Factor on the time of memory for a call that waits for other processes, a typical value."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of calls: from ``executors``, asked in order, else from PyTorch's operators.

    ``known`` is the rule table `recompute`, ``repeatable`` the one of that name. ``asked`` caches
    answers by question and call, since several ways to split a program ask the same; ``alike``
    those for calls that differ in names alone.
    """

    executors: Sequence[Executor]
    known: RuleTable[bool]
    repeatable: RuleTable[str]
    asked: dict[tuple[str, int], tuple[BoundSymbol, bool]] = field(
        default_factory=dict, repr=False, compare=False
    )
    alike: dict[tuple[Any, ...], bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, context: PassContext) -> Costs:
        """Make the costs from the executors and tables of ``context``."""
        tables = context.tables
        return cls(context.executors, tables[RECOMPUTE], tables[REPEATABLE])

    def fuses(self, call: BoundSymbol) -> bool:
        """Check that the executor that would take ``call`` fuses it with its neighbours."""
        return self._once("fuses", call, self._fuses)

    def rounds(self, call: BoundSymbol) -> bool:
        """Check that two runs of ``call`` may round in two ways: in kernels compiled with its
        neighbours.
        """
        return not multiplies(call) and any(map(self.fuses, operators(call)))

    def taken(self, call: BoundSymbol) -> bool:
        """Check that an executor other than PyTorch takes ``call`` as a whole."""
        return call.executor is not None or self._first(call) is not None

    def cheap(self, call: BoundSymbol) -> bool:
        """Check that ``call`` is cheap to recompute.

        A reduction is not, even in a fused kernel: it reads all of its argument again, and its
        result is small.
        """
        return self._once("cheap", call, self._cheap)

    def said(self, call: BoundSymbol) -> bool:
        """Check that the rule table marks ``call`` as cheap."""
        rule = self.known.of(call)
        return rule is not None and rule.value

    def repeats(self, call: BoundSymbol) -> str | None:
        """The rule by which ``call`` may run again although it keeps its order, or None."""
        rule = self.repeatable.of(call)
        return None if rule is None else rule.value

    def keeps_state(self, call: BoundSymbol) -> bool:
        """Check that an executor keeps state for ``call``, or a part of it, between runs."""
        return self._once("keeps state", call, self._keeps_state)

    def seconds(self, call: BoundSymbol) -> float:
        """Estimate the run time of ``call`` in seconds."""
        executor = self._first(call)
        said = None if executor is None else executor.cost(call)
        if said is not None:
            return said
        return estimate(call) * (NETWORK if self.repeats(call) else 1)

    def _once(self, question: str, call: BoundSymbol, ask: Callable[[BoundSymbol], bool]) -> bool:
        key = question, id(call)  # the call is kept, so that nothing else gets its identity
        if key not in self.asked:
            facts = _facts(call)
            alike = None if facts is None else (question, *facts)
            answer = None if alike is None else self.alike.get(alike)
            if answer is None:
                answer = ask(call)
                if alike is not None:
                    self.alike[alike] = answer
            self.asked[key] = call, answer
        return self.asked[key][1]

    def _fuses(self, call: BoundSymbol) -> bool:
        executor = self._first(call)
        return executor is not None and self._fused_by(executor, call)

    def _fused_by(self, executor: Executor, call: BoundSymbol) -> bool:
        return self._once(f"{executor.name} fuses", call, executor.fuses)

    def _cheap(self, call: BoundSymbol) -> bool:
        return cheap(call, self.known) or (self.fuses(call) and not _reduces(call))

    def _keeps_state(self, call: BoundSymbol) -> bool:
        if call.executor is not None:
            return bool(state_keepers(call))
        executor = self._first(call)
        # A call in a fused region is not claimed, so that the state of its claim is not made.
        fuses = executor is not None and self._fused_by(executor, call)
        rule = None if executor is None or fuses else executor.claim(call)
        if rule is not None:
            return rule.value.state is not None
        return call.body is not None and any(map(self.keeps_state, call.body.calls))

    def _first(self, call: BoundSymbol) -> Executor | None:
        asked = (e for e in self.executors if self._fused_by(e, call) or e.claimed(call))
        return next(asked, None)


def _facts(call: BoundSymbol) -> tuple[Any, ...] | None:
    """Facts that are equal for calls that differ in names alone: equal layers share bodies.

    None for a call without a body, or with constants that are not compared.
    """
    if call.body is None or call.subprograms or call.unnamed:
        return None
    given = [x for x in leaves((call.args, call.kwargs)) if not isinstance(x, Proxy)]
    tags = [p.tags for p in (*call.flat_args, *call.flat_outs)]
    facts = call.symbol, call.context, call.executor, call.tags
    return id(call.body), *facts, *tags, repr(given)


SMALLER = 4
"""Least ratio of bytes read to bytes returned of a call that counts as a reduction."""


def _reduces(call: BoundSymbol) -> bool:
    """Check that ``call`` returns a fraction of at most 1 /
    `SMALLER` of the bytes that it reads.
    """
    if makes_views(call):
        return False
    read = max((byte_size(p) for p in call.flat_args), default=0)
    return sum(map(byte_size, call.flat_outs)) * SMALLER <= read


def estimate(call: BoundSymbol) -> float:
    """Estimate the seconds of ``call`` at typical speeds of memory and arithmetic."""
    return sum(map(_operator, operators(call)))


def may_multiply(call: BoundSymbol) -> bool:
    """Check for a matrix product, a convolution or attention, or for parts that are not known.

    A part that is no operator of PyTorch's may be anything.
    """
    return multiplies(call) or any(part.symbol.namespace != "aten" for part in operators(call))


def _operator(call: BoundSymbol) -> float:
    if makes_views(call):
        return 0.0
    moved = sum(byte_size(p) for p in (*call.flat_args, *call.flat_outs))
    return moved / BYTES_PER_SECOND + operations(call) / OPERATIONS_PER_SECOND
