"""From a derivation to calls: the forward with what it must return, and the backward.

A forward whose backward reads values that are neither its arguments nor its outputs becomes
``<symbol>.augmented``, which returns those, too; any other stays the user's call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tj_core.extend import (
    Body,
    BoundSymbol,
    Change,
    Effects,
    Expanded,
    Proxy,
    Tag,
    TagRegistry,
    TensorProxy,
    bind_outputs,
    formal_input,
    leaves,
    substituted,
    substitution,
    with_args,
)
from tj_core.internal import AUGMENTED, BACKWARD
from tj_torch.extend import Derivation, Slot

from tj_autograd.joint.build import Differentiated, JointScope, Slots

__all__ = ["ONCE", "differentiated", "slots_of_arguments"]

ONCE = Tag(
    "ONCE",
    "PyTorch's autograd saves something for this call that its backward does not read, so that "
    "the graph is freed when it has been gone back through",
    carriers=frozenset({"call"}),
    into_body=False,
)


def differentiated(
    call: BoundSymbol, rule: Derivation, slots: Slots, scope: JointScope, change: Change
) -> Differentiated:
    """Differentiate ``call`` by the derivation ``rule``, for the cotangents in ``slots``."""
    return _Calls(call, rule, slots, scope).differentiated(change)


@dataclass(frozen=True, slots=True)
class _Calls:
    """Makes the forward and backward call of one differentiated call."""

    call: BoundSymbol
    rule: Derivation
    slots: Slots
    scope: JointScope

    def differentiated(self, change: Change) -> Differentiated:
        forward, inner = (self.call, ()) if not self.rule.intermediates else self.augmented()
        values = {"arg": self.call.flat_args, "out": self.call.flat_outs, "intermediate": inner}
        saved = [values[s.kind][s.index] for s in self.rule.saved]
        numbers = map(self.scope.number, self.rule.numbers)
        given = [*saved, *numbers, *(self.slots[s] for s in self.rule.tangents)]
        if self.rule.once and not any(isinstance(p, TensorProxy) for p in saved):
            forward = forward.replace(tags=forward.tags.add(ONCE.name))
        made, gradients = self.backward(given)
        return Differentiated(
            forward,
            made,
            dict(zip(self.rule.gradients, gradients, strict=True)),
            change,
            frozenset(s.index for s in self.rule.tangents if s.kind == "arg"),
        )

    def augmented(self) -> tuple[BoundSymbol, tuple[Proxy, ...]]:
        """Make the call that also returns its intermediates; return both."""
        call = self.call
        known = call.flat_outs

        made = call.replace(
            symbol=call.symbol.as_variant(AUGMENTED),
            parent=call.parent or call.label,
        )
        made = bind_outputs(made, self.rule.forward.facts, partial(self.scope.forward_name, call))
        made = made.replace(body=_with_tags(made.body, call.body, self.scope.tags))
        outputs, intermediates = made.outputs
        given = substituted(outputs, {p.name: p for p in known})
        return made.replace(outputs=(given, intermediates)), tuple(intermediates)

    def backward(self, given: Sequence[Any]) -> tuple[tuple[BoundSymbol, ...], list[TensorProxy]]:
        """Make the backward call; return it and the gradients.

        There is no call if each gradient is one of the values in ``given``.
        """
        facts = self.rule.backward.facts
        assert facts.body is not None
        results: list[Proxy] = list(leaves(facts.body.outputs))
        computed = [i for i, r in enumerate(results) if r.name.startswith("_")]
        first: dict[str, int] = {}
        for i in computed:
            first.setdefault(results[i].name, i)
        kept = list(first.values())
        made: tuple[BoundSymbol, ...] = ()
        named: dict[str, Any] = {formal_input(i): p for i, p in enumerate(given)}
        if kept:
            key = id(facts), tuple(kept)
            known = self.scope.backwards
            if key not in known:  # with the facts, whose identity must not become another's
                known[key] = facts, _only(facts, kept)
            call = self.bound(known[key][1], given, kept)
            made = (call,)
            named |= zip((results[i].name for i in kept), call.flat_outs, strict=True)
        return made, [named[r.name] for r in results]

    def bound(self, facts: Expanded, given: Sequence[Any], kept: Sequence[int]) -> BoundSymbol:
        """Make the backward call over the values ``given``, which may repeat."""
        call = self.call
        formal = [p.replace(name=formal_input(i)) for i, p in enumerate(given)]
        symbol = call.symbol.as_variant(BACKWARD)
        wishes = [f"grad_{call.flat_args[self.rule.gradients[i]].name}" for i in kept]
        made = self.scope.backward(call, symbol, *formal)
        made = bind_outputs(made, facts, lambda i: self.scope.namer(wishes[i]))
        actual = dict(zip((p.name for p in formal), given, strict=True))
        return with_args(made, substitution(actual))


def _with_tags(body: Body | None, known: Body | None, tags: TagRegistry) -> Body | None:
    """Copy the tags of ``known`` to ``body``, which makes the same calls and returns more.

    Calls of both come in one order: a call gets the tags of the next known call of its symbol.
    """
    if body is None or known is None or not any(map(_tagged, known.calls)):
        return body
    marked: dict[str, Proxy] = {}
    calls = []
    todo = list(known.calls)
    for call in body.calls:
        at = next((i for i, c in enumerate(todo) if c.symbol == call.symbol), None)
        if at is not None:
            same, todo = todo[at], todo[at + 1 :]
            call = call.replace(tags=tags.merge(call.tags, same.tags))
            for p, k in zip(call.flat_outs, same.flat_outs, strict=False):
                marked[p.name] = p.replace(tags=tags.merge(p.tags, k.tags))
        calls.append(call)
    mark = substitution(marked)
    return Body(
        body.inputs,
        tuple(call.map_proxies(mark) for call in calls),
        substituted(body.outputs, marked),
        body.updates,
    )


def _tagged(call: BoundSymbol) -> bool:
    return bool(call.tags) or any(p.tags for p in call.flat_outs)


def slots_of_arguments(call: BoundSymbol, rule: Derivation, scope: JointScope) -> Slots:
    """Gradients known so far of arguments to which ``call`` contributes more than once.

    The call's backward adds its contributions to them: a sum is rounded as in PyTorch only if it is
    added up in PyTorch's order.
    """
    names = {i: call.flat_args[i].name for i in rule.repeated}
    known = scope.cotangents
    return {Slot("arg", i): known[name] for i, name in names.items() if name in known}


def _only(facts: Expanded, kept: Sequence[int]) -> Expanded:
    """Restrict ``facts`` to the outputs at the indices ``kept``, renumbered."""
    assert facts.body is not None
    position = {old: new for new, old in enumerate(kept)}
    aliases = tuple(
        replace(a, output=position[a.output], index=position.get(a.index, a.index))
        if a.kind == "out"
        else replace(a, output=position[a.output])
        for a in facts.effects.aliases
        if a.output in position and (a.kind != "out" or a.index in position)
    )
    outputs = list(leaves(facts.outputs))
    results = list(leaves(facts.body.outputs))
    return Expanded(
        tuple(outputs[i] for i in kept),
        Effects(aliases=aliases, ordered=facts.effects.ordered),
        Body(facts.body.inputs, facts.body.calls, tuple(results[i] for i in kept)),
    )
