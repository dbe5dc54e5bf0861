"""JOINT: a functional trace and its gradient in one trace.

The calls are gone through backwards. Each whose outputs have cotangents, and some of whose
arguments need a gradient, is differentiated: its forward takes its place, its backward follows
those of the calls after it. All others are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Change,
    Context,
    Decline,
    Expand,
    Namer,
    NumberProxy,
    PassRecord,
    Proxy,
    RuleTable,
    Stage,
    Symbol,
    TagRegistry,
    TagSet,
    TensorProxy,
    Trace,
    TraceEditor,
    bind_outputs,
    requires_grad,
    value_names,
)
from tj_torch.extend import AUTOCAST, CROSSING, ExpansionError, Slot, is_dense, row_major

from tj_autograd.joint.functions import has_own_backward
from tj_autograd.joint.segments import Cut, carries, uncut

__all__ = [
    "BACKWARD_TAGS",
    "DEFAULT_LAYOUT",
    "Differentiate",
    "Differentiated",
    "JointScope",
    "Layout",
    "NotDifferentiable",
    "Slots",
    "carries",
    "joint",
    "tangent",
]

BACKWARD_TAGS = TagSet(["BACKWARD"])

Slots = dict[Slot, TensorProxy]
"""The cotangents of a call's outputs."""

Layout = tuple[tuple[Any, ...] | None, ...]
"""The strides of each tangent of a trace: None for one that does not exist, `DEFAULT_LAYOUT`
for one that is laid out as `tangent` says."""

DEFAULT_LAYOUT: Any = ("usual",)


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A call with its gradient.

    ``forward`` takes the call's place. ``backward`` computes ``gradients``, those of the call's
    arguments by flat index; it may be empty where a gradient is a tangent itself. ``totals`` are
    arguments whose gradient includes what was known of it before. ``change`` says whose rule it is.
    """

    forward: BoundSymbol
    backward: tuple[BoundSymbol, ...]
    gradients: dict[int, TensorProxy]
    change: Change
    totals: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class JointScope:
    """What differentiating a call may ask of the joint trace.

    ``context`` is the context of backward calls; ``cotangents`` the gradients known so far, by the
    value's name. ``number`` gives the value of a symbol in sizes, read off what is there at the
    call that is differentiated. ``expand`` knows what calls compute.
    """

    namer: Namer
    context: Context
    tags: TagRegistry
    cotangents: dict[str, TensorProxy]
    number: Callable[[str], NumberProxy]
    expand: RuleTable[Expand]

    def backward(self, call: BoundSymbol, symbol: Symbol, *args: Any) -> BoundSymbol:
        """A backward call of ``call``, without outputs yet: where it belongs and its tags."""
        passed = self.tags.propagated(call.tags, "to_backward")
        return BoundSymbol(
            symbol,
            args,
            context=self.context,
            tags=self.tags.merge(passed, BACKWARD_TAGS, call.source),
            source=call.source,
            parent=call.label,
        )


class NotDifferentiable(Exception):
    """Nobody but PyTorch's autograd can differentiate the program: ``decline`` says why."""

    def __init__(self, decline: Decline) -> None:
        super().__init__(decline.reason)
        self.decline = decline


Differentiate = Callable[[BoundSymbol, Slots, JointScope], Differentiated]
"""Differentiates a call for the cotangents of its outputs."""


def joint(
    trace: Trace,
    *,
    differentiate: Differentiate,
    expand: RuleTable[Expand],
    tags: TagRegistry,
    layout: Layout | None = None,
    cut: Cut | None = None,
    decomposed: tuple[Change, ...] = (),
    name: str = "joint",
    plugin: str = "autograd",
) -> Trace:
    """``trace`` with its gradient; the same object if no output carries one.

    Inputs are those of ``trace``, then a tangent (tagged ``BACKWARD``) for each output that
    requires a gradient, with the strides that ``layout`` says, if it says so. Outputs are a pair:
    those of ``trace``, and the gradients of its inputs, None for one without. Where ``cut`` has
    several segments, tangents are those of what each returns, and gradients a dict for each, by
    the name of what it takes; ``name.call`` stands for the part that one call adds to a gradient.
    ``decomposed`` are changes that were made for this pass, which its record names, too.
    """
    builder = _Builder(trace, differentiate, expand, tags, cut or uncut(trace))
    tangents = builder.tangents(layout)
    if not tangents:
        return trace
    for index in reversed(range(len(trace.calls))):
        builder.step(index)
    builder.editor.keep(*builder.calls())
    for p in builder.crossing():
        builder.editor.inherit(p, TagSet([CROSSING.name]))
    return builder.editor.done(
        PassRecord(name, plugin, (*builder.changes, *decomposed[::-1])),
        inputs=(*trace.inputs, *tangents),
        outputs=(trace.outputs, builder.gradients()),
        stage=Stage.JOINT,
    )


@dataclass
class _Segment:
    """What is known of one segment's gradients; ``cotangents`` by value.

    ``apart`` are gradients that autograd adds, in the order in which it does. ``missing`` are the
    values that autograd gets None for, where it asks for their gradient.
    """

    scope: JointScope
    cotangents: dict[str, TensorProxy] = field(default_factory=dict)
    apart: dict[str, TensorProxy] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)


@dataclass
class _Builder:
    """The joint trace on its way, ``segments`` those of ``cut``.

    ``reads`` are the calls that read sizes for the backward, by the call that they follow; ``at``
    is the one being differentiated, ``here`` its segment. ``waiting`` are tangents that later
    segments contribute, with the names of their values, by the last call that uses these there:
    eager goes back from the last use of a value, and the sum is laid out as its first gradient.
    """

    trace: Trace
    differentiate: Differentiate
    expand: RuleTable[Expand]
    tags: TagRegistry
    cut: Cut
    backward: list[BoundSymbol] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    reads: dict[int, list[BoundSymbol]] = field(default_factory=dict)
    waiting: dict[int, list[tuple[int, str, TensorProxy]]] = field(default_factory=dict)
    at: int = 0

    def __post_init__(self) -> None:
        self.forward = list(self.trace.calls)
        off = {k: None for k, v in self.trace.context.items if k.startswith(AUTOCAST) and v}
        context = Context.of(**off, grad=False).over(self.trace.context)
        self.editor = TraceEditor(self.trace, self.tags)
        self.segments = []
        for _ in self.cut.outputs:
            known: dict[str, TensorProxy] = {}
            scope = JointScope(
                self.editor.fresh, context, self.tags, known, self.number, self.expand
            )
            self.segments.append(_Segment(scope, known))
        self.here = self.segments[0]
        self.numbers = {
            p.expr: p for p in self.trace.inputs if isinstance(p, NumberProxy) and p.expr
        }

    def tangents(self, layout: Layout | None) -> tuple[TensorProxy, ...]:
        """A tangent for each value that a segment returns."""
        outputs = [(k, p) for k, ps in enumerate(self.cut.outputs) for p in ps]
        strides = layout or (DEFAULT_LAYOUT,) * len(outputs)
        used = {} if self.cut.whole else self.used_later()
        found = []
        for (k, p), how in zip(outputs, strides, strict=True):
            made = self.detached(tangent(p, self.here.scope.namer(f"grad_{p.name}")))
            if how is not None:
                made = made if how == DEFAULT_LAYOUT else made.replace(strides=how)
                if p.name in used:
                    self.waiting.setdefault(used[p.name], []).append((k, p.name, made))
                else:
                    self.segments[k].cotangents[p.name] = made
                found.append(made)
        return tuple(found)

    def used_later(self) -> dict[str, int]:
        """The last call that a value is an argument of in another segment, if it is no result."""
        found = {}
        for index, call in enumerate(self.trace.calls):
            segment = self.cut.segment(call)
            for p in call.flat_args if segment is not None else ():
                if self.cut.makers.get(p.name, segment) != segment:
                    found[p.name] = index
        results = value_names(self.trace.outputs)
        return {name: index for name, index in found.items() if name not in results}

    def detached(self, p: TensorProxy) -> TensorProxy:
        """``p``, of a tensor subclass as detached ones are: its context may say otherwise."""
        if p.subclass is None:
            return p
        call = BoundSymbol(Symbol("aten", "detach.default"), (p,), context=self.here.scope.context)
        try:
            out = self.expand.require(call).value(call).outputs
        except (CannotExpandError, ExpansionError):
            return p
        return p.replace(subclass=out.subclass)

    def gradients(self) -> Any:
        """Those of the inputs, or of what each segment takes."""
        if self.cut.whole:
            return tuple(self.here.cotangents.get(p.name) for p in self.trace.inputs)
        return tuple(map(self.of_segment, range(len(self.segments))))

    def crossing(self) -> Iterator[TensorProxy]:
        """The values of subclasses that segments return, of which there are several."""
        if not self.cut.whole:
            yield from (p for ps in self.cut.outputs for p in ps if p.subclass is not None)

    def of_segment(self, index: int) -> dict[str, TensorProxy]:
        taken = [p.name for p in (*self.trace.inputs, *self.cut.taken(index))]
        known = self.segments[index].cotangents
        return {n: known[n] for n in taken if n in known} | self.segments[index].apart

    def step(self, index: int) -> None:
        """Differentiate one call of the forward, if a gradient reaches it."""
        self.at, call = index, self.forward[index]
        for place, name, gradient in self.waiting.get(index, ()):
            self.here = self.segments[place]
            self.add(call, name, gradient, total=False)
        segment = self.cut.segment(call)
        if segment is None or not carries(call):
            return
        self.here = self.segments[segment]
        slots = self.slots(call) or self.zeros(call)
        if slots:
            self.differentiated(index, self.differentiate(call, slots, self.here.scope))
        elif self.asked(call):
            self.here.missing.update(p.name for p in call.flat_args if requires_grad(p))

    def differentiated(self, index: int, done: Differentiated) -> None:
        """Take the forward and backward of a call for it."""
        call = self.forward[index]
        self.forward[index] = done.forward
        self.backward += done.backward
        self.changes.append(done.change)
        for i, gradient in done.gradients.items():
            self.add(call, call.flat_args[i].name, gradient, total=i in done.totals)
        others = (p for i, p in enumerate(call.flat_args) if i not in done.gradients)
        self.here.missing.update(p.name for p in others if requires_grad(p))

    def add(self, call: BoundSymbol, name: str, gradient: TensorProxy, *, total: bool) -> None:
        """Add what ``call`` contributes to the gradient of value ``name``, or note its total."""
        known = self.here.cotangents
        if name in self.cut.apart and self.comes_from_outside(name):
            known, name = self.here.apart, f"{name}.{call.label}"
        before = None if total else known.get(name)
        known[name] = gradient if before is None else self.sum(before, gradient, call)

    def comes_from_outside(self, name: str) -> bool:
        maker = self.cut.makers.get(name)
        return maker is None or self.segments[maker] is not self.here

    def asked(self, call: BoundSymbol) -> bool:
        """Whether autograd asks ``call`` for gradients, having none for what it returns."""
        return not self.here.missing.isdisjoint(p.name for p in call.flat_outs)

    def zeros(self, call: BoundSymbol) -> Slots:
        """A cotangent of zeros for a backward that runs though there is no gradient.

        PyTorch's own formulas pass None on; the backward of a Function or of a custom operator is
        called with zeros.
        """
        if not self.asked(call) or not has_own_backward(call):
            return {}
        outs = ((i, p) for i, p in enumerate(call.flat_outs) if isinstance(p, TensorProxy))
        index, out = next((i, p) for i, p in outs if requires_grad(p))
        return {Slot("out", index): self.made(call, "zeros_like.default", out)}

    def calls(self) -> Iterator[BoundSymbol]:
        """The forward with what it reads for the backward, then the backward."""
        for index, call in enumerate(self.forward):
            yield call
            yield from self.reads.get(index, ())
        yield from self.backward

    def number(self, text: str) -> NumberProxy:
        """The value of symbol ``text``.

        :raises CannotExpandError: if no size says it.
        """
        if text not in self.numbers:
            call = self.trace.calls[self.at]
            for p in (*self.trace.inputs, *call.flat_args, *call.flat_outs):
                sizes = list(map(str, p.shape)) if isinstance(p, TensorProxy) else []
                if text in sizes:
                    self.numbers[text] = self.read(p, sizes.index(text), call)
                    break
                if isinstance(p, NumberProxy) and p.expr == text:
                    self.numbers[text] = p
                    break
            else:
                raise CannotExpandError(f"no size says what {text} is")
        return self.numbers[text]

    def read(self, p: Proxy, dim: int, call: BoundSymbol) -> NumberProxy:
        made = BoundSymbol(
            Symbol("aten", "sym_size.int"), (p, dim), context=call.context, source=call.source
        )
        facts = self.expand.require(made).value(made)
        made = bind_outputs(made, facts, lambda _: self.here.scope.namer(f"{p.name}_size"))
        self.reads.setdefault(self.at, []).append(made)
        assert isinstance(made.outputs, NumberProxy)
        return made.outputs

    def slots(self, call: BoundSymbol) -> Slots:
        """The outputs of ``call`` that have a cotangent, with it; one object counts once."""
        first = {a.output: a.index for a in call.effects.aliases if a.identical and a.kind == "out"}
        found: Slots = {}
        for i, out in enumerate(call.flat_outs):
            cotangent = self.here.cotangents.pop(out.name, None)
            if cotangent is None or not requires_grad(out):
                continue
            slot = Slot("out", first.get(i, i))
            known = found.get(slot)
            found[slot] = cotangent if known is None else self.sum(known, cotangent, call)
        return {slot: self.plain(cotangent, call) for slot, cotangent in found.items()}

    def plain(self, cotangent: TensorProxy, call: BoundSymbol) -> TensorProxy:
        """``cotangent``, or a view of it where it is a value that the forward knows, as autograd
        does: a backward may return what it has saved."""
        if not cotangent.requires_grad:
            return cotangent
        return self.made(call, "detach.default", cotangent)

    def sum(self, a: TensorProxy, b: TensorProxy, call: BoundSymbol) -> TensorProxy:
        """The sum of two gradients of one value, in the order in which they came."""
        return self.made(call, "add.Tensor", a, b)

    def made(self, call: BoundSymbol, operator: str, *args: TensorProxy) -> TensorProxy:
        """What ``operator`` makes of ``args`` in the backward of ``call``."""
        made = self.here.scope.backward(call, Symbol("aten", operator), *args)
        facts = self.expand.require(made).value(made)
        made = bind_outputs(made, facts, lambda _: self.here.scope.namer(args[0].name))
        self.backward.append(made)
        out = made.outputs
        assert isinstance(out, TensorProxy)
        return out


def tangent(p: TensorProxy, name: str) -> TensorProxy:
    """The tangent of ``p``: laid out like it where that is dense, else contiguous."""
    made = p.replace(name=name, requires_grad=False, flags=(), tags=BACKWARD_TAGS)
    return made if is_dense(p) else made.replace(strides=row_major(p.shape))
