"""JOINT: a functional trace and its gradient in one trace.

The calls are gone through backwards. Each whose outputs have cotangents, and some of whose
arguments need a gradient, makes a backward call; all others are left as they are. A call whose
backward reads values that are neither its arguments nor its outputs becomes ``<symbol>.augmented``,
which returns those, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.bodies import with_args
from tj_core.expand import Expand, Expanded, bind_outputs
from tj_core.proxy import Proxy, TensorProxy, contiguous_strides
from tj_core.rules import RuleTable
from tj_core.stages import Stage
from tj_core.symbol import Body, BoundSymbol, Context, Effects, Symbol
from tj_core.tags import TagRegistry, TagSet
from tj_core.trace import Change, Namer, PassRecord, Trace
from tj_core.tree import leaves, map_tree
from tj_torch.dialect.derive import Derivation, Slot

__all__ = ["AUGMENTED", "BACKWARD", "Derive", "Found", "Layout", "joint", "primal"]

AUGMENTED = ".augmented"
"""Ends the name of a forward call that returns more than the user's call, for its backward."""

BACKWARD = ".backward"
"""Ends the name of a backward call."""

_USUAL: Any = ("usual",)

BACKWARD_TAGS = TagSet(["BACKWARD"])

Layout = tuple[tuple[Any, ...] | None, ...]
"""The strides of each tangent, None for one that does not exist."""


@dataclass(frozen=True, slots=True)
class Found:
    """The gradient of a call, and whose rule it is."""

    derivation: Derivation
    plugin: str = "autograd"
    rule: str = "derived"
    origin: str = ""


Derive = Callable[[BoundSymbol, Mapping[Slot, TensorProxy]], Found]


def joint(
    trace: Trace,
    *,
    derive: Derive,
    expand: RuleTable[Expand],
    tags: TagRegistry,
    layout: Layout | None = None,
    name: str = "joint",
    plugin: str = "autograd",
) -> Trace:
    """``trace`` with its gradient; the same object if no output carries one.

    Inputs are those of ``trace``, then a tangent (tagged ``BACKWARD``) for each output that
    requires a gradient, with the strides that ``layout`` says, if it says so. Outputs are a pair:
    those of ``trace``, and the gradients of its inputs, None for one without.

    :raises CannotExpandError: if a call cannot be differentiated on fake tensors.
    """
    builder = _Builder(trace, derive, expand, tags, Namer(trace.names()))
    tangents = builder.tangents(layout)
    if not tangents:
        return trace
    for index in reversed(range(len(trace.calls))):
        builder.differentiate(index)
    gradients = tuple(builder.cotangents.get(p.name) for p in trace.inputs)
    calls = builder.forward + builder.backward
    record = PassRecord(name, plugin, tuple(builder.changes))
    return trace.after(
        record,
        inputs=(*trace.inputs, *tangents),
        calls=tuple(calls),
        outputs=(trace.outputs, gradients),
        stage=Stage.JOINT,
    )


def primal(joint: Trace, expand: RuleTable[Expand]) -> Trace:
    """The trace that ``joint`` was made from."""
    calls = tuple(_primal(c, expand) for c in joint.calls if "BACKWARD" not in c.tags)
    inputs = tuple(p for p in joint.inputs if "BACKWARD" not in p.tags)
    return joint.replace(
        inputs=inputs, calls=calls, outputs=joint.outputs[0], stage=Stage.FUNCTIONAL
    )


def _primal(call: BoundSymbol, expand: RuleTable[Expand]) -> BoundSymbol:
    if not call.symbol.name.endswith(AUGMENTED):
        return call
    outputs, _ = call.outputs
    known = [p for p in leaves(outputs) if isinstance(p, Proxy)]
    name = call.symbol.name.removesuffix(AUGMENTED)
    made = call.replace(symbol=Symbol(call.symbol.namespace, name))
    made = bind_outputs(made, expand.require(made).value(made), lambda i: known[i].name)
    return made.replace(outputs=outputs)


def carries(call: BoundSymbol) -> bool:
    """Whether a gradient may flow through ``call``: one of its outputs has one to give."""
    if call.context.get("grad") is False or call.context.get("inference"):
        return False
    return any(map(_differentiable, call.flat_outs)) and any(map(_differentiable, call.flat_args))


def _differentiable(p: Proxy) -> bool:
    return isinstance(p, TensorProxy) and p.requires_grad


@dataclass
class _Builder:
    """The joint trace on its way; ``cotangents`` are the gradients known so far, by value."""

    trace: Trace
    derive: Derive
    expand: RuleTable[Expand]
    tags: TagRegistry
    namer: Namer
    forward: list[BoundSymbol] = field(default_factory=list)
    backward: list[BoundSymbol] = field(default_factory=list)
    cotangents: dict[str, TensorProxy] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.forward = list(self.trace.calls)
        off = {k: None for k, v in self.trace.context.items if k.startswith("autocast.") and v}
        self.context = Context.of(**off, grad=False).over(self.trace.context)

    def tangents(self, layout: Layout | None) -> tuple[TensorProxy, ...]:
        """A tangent for each output that carries a gradient and is no input."""
        known = {p.name for p in self.trace.inputs}
        found = {}
        for p in leaves(self.trace.outputs):
            if isinstance(p, TensorProxy) and p.requires_grad and p.name not in known:
                found[p.name] = p
        strides = layout or (_USUAL,) * len(found)
        for p, how in zip(found.values(), strides, strict=True):
            made = tangent(p, self.namer(f"grad_{p.name}"))
            if how is not None:
                made = made if how is _USUAL else made.replace(strides=how)
                self.cotangents[p.name] = made
        return tuple(self.cotangents.values())

    def differentiate(self, index: int) -> None:
        """Add the backward of one forward call, if a gradient reaches it."""
        call = self.forward[index]
        if not carries(call):
            return
        slots = self.slots(call)
        if not slots:
            return
        rule = self.derive(call, slots)
        partial = self.partial(call, rule.derivation)
        if partial:
            slots |= partial
            rule = self.derive(call, slots)
        self.changes.append(Change(call.label, rule.plugin, rule.rule, rule.origin))
        self.apply(index, rule.derivation, slots)

    def apply(self, index: int, rule: Derivation, slots: Mapping[Slot, TensorProxy]) -> None:
        """Put the forward in its place and add the backward."""
        call = self.forward[index]
        hidden: tuple[Proxy, ...] = ()
        if rule.hidden:
            self.forward[index], hidden = self.augmented(call, rule)
        self.emit(call, rule, slots, hidden)

    def partial(self, call: BoundSymbol, rule: Derivation) -> dict[Slot, TensorProxy]:
        """The gradients known so far of arguments to which the call adds more than one.

        They take part in the call's backward: sums are rounded in PyTorch's order only if they
        are made in it.
        """
        names = {i: call.flat_args[i].name for i in rule.repeated}
        found = {i: self.cotangents[name] for i, name in names.items() if name in self.cotangents}
        return {Slot("arg", i): p for i, p in found.items()}

    def slots(self, call: BoundSymbol) -> dict[Slot, TensorProxy]:
        """The outputs of ``call`` that have a cotangent, with it; one object counts once."""
        first = {a.output: a.index for a in call.effects.aliases if a.identical and a.kind == "out"}
        found: dict[Slot, TensorProxy] = {}
        for i, out in enumerate(call.flat_outs):
            cotangent = self.cotangents.pop(out.name, None)
            if cotangent is None or not _differentiable(out):
                continue
            slot = Slot("out", first.get(i, i))
            known = found.get(slot)
            found[slot] = cotangent if known is None else self.sum(known, cotangent, call)
        return found

    def augmented(
        self, call: BoundSymbol, rule: Derivation
    ) -> tuple[BoundSymbol, tuple[Proxy, ...]]:
        """``call`` returning its hidden values, too, and these."""
        known = [p.name for p in call.flat_outs]
        made = call.replace(
            symbol=Symbol(call.symbol.namespace, call.symbol.name + AUGMENTED),
            parent=call.parent or call.label,
        )
        made = bind_outputs(
            made,
            rule.forward.facts,
            lambda i: known[i] if i < len(known) else self.namer(f"{call.label}_saved"),
        )
        outputs, hidden = made.outputs
        given = {p.name: p for p in call.flat_outs}
        outputs = map_tree(lambda p: given.get(p.name, p), outputs, Proxy)
        return made.replace(outputs=(outputs, hidden)), tuple(hidden)

    def emit(
        self,
        call: BoundSymbol,
        rule: Derivation,
        slots: Mapping[Slot, TensorProxy],
        hidden: tuple[Proxy, ...],
    ) -> None:
        """Add the backward call, and its gradients to those of the arguments."""
        values = {"arg": call.flat_args, "out": call.flat_outs, "hidden": hidden}
        saved = [values[s.kind][s.index] for s in rule.saved]
        given = [*saved, *(slots[s] for s in rule.tangents)]
        made, gradients = self.backward_call(call, rule, given)
        if made is not None:
            self.backward.append(made)
        for index, gradient in zip(rule.gradients, gradients, strict=True):
            if Slot("arg", index) in slots:  # its own tangent is part of it
                self.cotangents[call.flat_args[index].name] = gradient
            else:
                self.accumulate(call.flat_args[index], gradient, call)

    def backward_call(
        self, call: BoundSymbol, rule: Derivation, given: list[Any]
    ) -> tuple[BoundSymbol | None, list[TensorProxy]]:
        """The backward call, None if it passes its tangents on, and the gradients."""
        facts = rule.backward.facts
        assert facts.body is not None
        results = list(leaves(facts.body.outputs))
        kept = [i for i, r in enumerate(results) if r.name.startswith("_")]
        kept = [i for n, i in enumerate(kept) if results[i] not in [results[k] for k in kept[:n]]]
        made = None
        if kept:
            wishes = [f"grad_{call.flat_args[rule.gradients[i]].name}" for i in kept]
            made = self.bound(call, _only(facts, kept), given, wishes)
        named = {
            results[i].name: p for i, p in zip(kept, made.flat_outs if made else (), strict=True)
        }
        gradients = [named[r.name] if r.name in named else given[int(r.name[1:])] for r in results]
        return made, gradients

    def bound(
        self, call: BoundSymbol, facts: Expanded, given: list[Any], names: list[str]
    ) -> BoundSymbol:
        """A backward call over the values ``given``, which need not be distinct."""
        assert facts.body is not None
        formal = [p.replace(name=f"a{i}") for i, p in enumerate(given)]
        made = BoundSymbol(
            Symbol(call.symbol.namespace, call.symbol.name + BACKWARD),
            tuple(formal),
            context=self.context,
            tags=self.tags.merge(
                self.tags.traveling(call.tags, "to_backward"), BACKWARD_TAGS, call.source
            ),
            source=call.source,
            parent=call.label,
        )
        made = bind_outputs(made, facts, lambda i: self.namer(names[i]))
        actual = dict(zip((p.name for p in formal), given, strict=True))
        return with_args(made, lambda p: actual[p.name])

    def accumulate(self, value: Proxy, gradient: TensorProxy, call: BoundSymbol) -> None:
        known = self.cotangents.get(value.name)
        self.cotangents[value.name] = gradient if known is None else self.sum(known, gradient, call)

    def sum(self, a: TensorProxy, b: TensorProxy, call: BoundSymbol) -> TensorProxy:
        """The sum of two gradients of one value, in the order in which they came."""
        made = BoundSymbol(
            Symbol("aten", "add.Tensor"),
            (a, b),
            context=self.context,
            tags=BACKWARD_TAGS,
            source=call.source,
            parent=call.label,
        )
        made = bind_outputs(
            made, self.expand.require(made).value(made), lambda _: self.namer(a.name)
        )
        self.backward.append(made)
        out = made.outputs
        assert isinstance(out, TensorProxy)
        return out


def tangent(p: TensorProxy, name: str) -> TensorProxy:
    """The tangent of ``p``: laid out like it where that is dense, else contiguous."""
    made = p.replace(name=name, requires_grad=False, flags=(), tags=BACKWARD_TAGS)
    return made if _dense(p) else made.replace(strides=contiguous_strides(p.shape) or ())


def _dense(p: TensorProxy) -> bool:
    """Whether the elements fill a block of memory, each once."""
    expected: Any = 1
    for stride, size in sorted(
        ((s, n) for s, n in zip(p.strides, p.shape, strict=True) if n != 1), key=lambda x: x[0]
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def _only(facts: Expanded, kept: list[int]) -> Expanded:
    """``facts`` with the outputs in ``kept``, renumbered."""
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
