"""Executors' own pairs of forward and backward: calls that belong to an executor from JOINT on.

The forward of executor ``e`` for ``torch.f`` is ``e.torch.f.forward`` and returns the results and
the saved values; the backward, ``e.torch.f.backward``, takes the saved values and the tangents and
returns a gradient per parameter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Change,
    Constant,
    Context,
    Executor,
    Expanded,
    Pair,
    Proxy,
    Rule,
    States,
    Symbol,
    TensorProxy,
    ask,
    bind_outputs,
    leaves,
    substituted,
)
from tj_core.internal import BACKWARD, FORWARD, answer, same_objects, with_state
from tj_torch.extend import Expander, Sizes, Slot

from tj_autograd.joint.build import Differentiated, JointScope, Slots
from tj_autograd.joint.rules import (
    check_gradients,
    check_outputs,
    expanded,
    fitting,
    per_argument,
    returned_pair,
)

__all__ = ["Declined", "find_pair", "paired"]


Declined = tuple[tuple[str, str], ...]
"""Owners that did not differentiate a call, each with the reason."""


def find_pair(
    call: BoundSymbol, executors: Sequence[Executor]
) -> tuple[tuple[Executor, Rule[Any]] | None, Declined]:
    """Find the first executor whose claim takes ``call`` and has a pair.

    Returns the executor with its claim, or None, and the executors that declined before it.
    """
    declined: list[tuple[str, str]] = []
    for executor in executors:
        rule = executor.claim(call)
        if rule is None:
            continue
        reason = _declined(executor, rule, call)
        if reason is None:
            return (executor, rule), tuple(declined)
        declined.append((executor.name, reason))
    return None, tuple(declined)


def _declined(executor: Executor, rule: Rule[Any], call: BoundSymbol) -> str | None:
    """Reason why the claim ``rule`` does not differentiate ``call``; None if it does."""
    # The claim is for the forward: taken here, the call would have no gradient.
    if rule.value.pair is None:
        return "it has no gradient"
    return ask(executor.owner, rule.value.check, call)


def paired(
    call: BoundSymbol,
    executor: Executor,
    rule: Rule[Any],
    slots: Slots,
    scope: JointScope,
    expander: Expander,
    sizes: Sizes,
    states: States,
) -> Differentiated:
    """Differentiate ``call`` by the executor's forward and backward.

    Both get the state that the executor keeps for the call, which is added to ``states``.

    :raises PluginError: if the pair does not fit the call.
    """
    pairing = _Pairing(call, executor, rule, slots, scope, expander, sizes, states)
    with fitting(call, pairing.whose):
        return pairing.differentiated()


@dataclass(frozen=True)
class _Pairing:
    """A call and the pair of an executor."""

    call: BoundSymbol
    executor: Executor
    rule: Rule[Any]
    slots: Slots
    scope: JointScope
    expander: Expander
    sizes: Sizes
    states: States

    @cached_property
    def pair(self) -> Pair:
        """The pair with its state bound, so that its functions can be expanded.

        A pair with ``meta`` is expanded by that, which takes no state.
        """
        found: Pair = self.rule.value.pair
        make = self.rule.value.state
        if make is None:
            return found
        state = answer(self.executor.owner, make, self.call) if found.meta is None else None
        forward = functools.partial(found.forward, state=state)
        return Pair(forward, functools.partial(found.backward, state=state), found.meta)

    @cached_property
    def state(self) -> Constant | None:
        """The constant that holds the executor's state for the call; None without one."""
        name = f"pair_state_{self.call.label}"
        return self.executor.state_of(self.call, self.rule, self.states, name)

    @property
    def whose(self) -> str:
        """Name of the pair in error messages."""
        return f"the pair for {self.rule.key!r} of {self.executor.owner}"

    def differentiated(self) -> Differentiated:
        meta = self.pair.meta or (self.pair.forward, self.pair.backward)
        forward, saved = self.forward(meta[0])
        backward, gradients = self.backward(meta[1], saved)
        change = Change(self.call.label, self.executor.name, self.rule.key, self.rule.origin)
        return Differentiated(forward, (backward,), gradients, change)

    def symbol(self, half: str) -> Symbol:
        return self.executor.symbol(self.call, self.rule, half)

    def expanded(
        self, meta: Callable[..., Any], args: Any, kwargs: Any, context: Context
    ) -> Expanded:
        """Expand ``meta``, which describes one half of the pair."""
        return expanded(
            self.expander, self.sizes, self.call, self.whose, meta, args, kwargs, context
        ).facts

    def forward(self, meta: Callable[..., Any]) -> tuple[BoundSymbol, Any]:
        """Make the forward call; return it and the values that it saves."""
        call = self.call
        facts = self.expanded(meta, call.args, call.kwargs, call.context)
        outputs, _ = returned_pair(facts.outputs)
        check_outputs(call, outputs, self.whose)
        known = call.flat_outs

        made = call.replace(
            symbol=self.symbol(FORWARD),
            executor=self.executor.name,
            parent=call.parent or call.label,
        )
        made = bind_outputs(made, facts, partial(self.scope.forward_name, call))
        given = {p.name: p for p in known}
        made = made.replace(outputs=substituted(made.outputs, given))
        saved = substituted(made.outputs[1], same_objects(made))
        return with_state(made, self.state), saved

    def backward(
        self, meta: Callable[..., Any], saved: Any
    ) -> tuple[BoundSymbol, dict[int, TensorProxy]]:
        """Make the backward call; return it and the gradients by flat index of the argument."""
        call = self.call
        outs = [Slot("out", i) for i in range(len(call.flat_outs))]
        tangents = [self.slots.get(slot) for slot in outs]
        made = self.scope.backward(call, self.symbol(BACKWARD), tuple(saved), *tangents)
        facts = self.expanded(meta, made.args, (), self.scope.context)
        wanted = {
            g.name: i for i, g in per_argument(call, self.pair, facts.outputs) if g is not None
        }
        names = [f"grad_{call.flat_args[i].name}" for i in wanted.values()]
        every = [p.name for p in leaves(facts.outputs) if isinstance(p, Proxy)]
        wishes = dict(zip(wanted, names, strict=True))

        def name(i: int) -> str:
            return self.scope.namer(wishes.get(every[i], f"{call.label}_unused"))

        made = bind_outputs(made, facts, name).replace(executor=self.executor.name)
        bound = dict(zip(every, made.flat_outs, strict=True))
        gradients = {i: bound[formal] for formal, i in wanted.items()}
        check_gradients(call, gradients, self.whose)
        return with_state(made, self.state), gradients  # type: ignore[return-value]
