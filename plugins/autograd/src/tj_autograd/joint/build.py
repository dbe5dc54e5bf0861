"""JOINT: a functional trace and its gradient in one trace.

The builder walks the calls from last to first. A call is differentiated if one of its outputs has a
cotangent and one of its arguments requires grad: its forward takes its place, its backward is
appended to those of later calls. Other calls are unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Change,
    Constant,
    Context,
    Decline,
    Expand,
    Expanded,
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
from tj_torch.extend import AUTOCAST, CROSSING, ExpansionError, Slot
from tj_torch.internal import is_dense, row_major, symbols_in

from tj_autograd.joint.functions import has_own_backward
from tj_autograd.joint.layouts import hints_of, layouts, like_dense, like_ones
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
"""Cotangents of a call's outputs, by slot."""

Layout = tuple[tuple[Any, ...] | None, ...]
"""Strides of each tangent of a trace: None for a tangent that does not exist, `DEFAULT_LAYOUT` for
one laid out as `tangent` says.
"""

DEFAULT_LAYOUT: Any = ("usual",)


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A call with its gradient.

    ``forward`` takes the call's place. ``backward`` computes ``gradients``, which are keyed by the
    flat index of the argument; it is empty where each gradient is a tangent passed on. A gradient
    whose index is in ``totals`` already includes the cotangent that later calls contributed.
    ``change`` records which rule was used.
    """

    forward: BoundSymbol
    backward: tuple[BoundSymbol, ...]
    gradients: dict[int, TensorProxy]
    change: Change
    totals: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class JointScope:
    """The parts of the joint trace that a gradient rule may use.

    ``context`` is the context of backward calls; ``cotangents`` maps a value's name to its gradient
    so far. ``number`` gives the value of a size symbol, read off a value that exists at the
    differentiated call. ``expand`` is the table that expands calls. ``backwards`` has the backwards
    of derivations by identity and results, so that equal calls share the body of one.
    """

    namer: Namer
    context: Context
    tags: TagRegistry
    cotangents: dict[str, TensorProxy]
    number: Callable[[str], NumberProxy]
    expand: RuleTable[Expand]
    backwards: dict[tuple[int, tuple[int, ...]], tuple[Expanded, Expanded]] = field(
        default_factory=dict
    )

    def forward_name(self, call: BoundSymbol, i: int) -> str:
        """Name of output ``i`` of the forward of ``call``: its results, and then what it saves."""
        known = call.flat_outs
        return known[i].name if i < len(known) else self.namer(f"{call.label}_saved")

    def backward(self, call: BoundSymbol, symbol: Symbol, *args: Any) -> BoundSymbol:
        """Make a backward call of ``call``: its parent, source and tags set, its outputs not yet
        bound.
        """
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
    """Only PyTorch's autograd can differentiate the program; ``decline`` says why."""

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
    """Build the joint trace of ``trace``; return ``trace`` itself if no output requires grad.

    Inputs of the result are those of ``trace``, then a tangent (tagged ``BACKWARD``) for each
    output that requires grad, with strides from ``layout``. Outputs are a pair: the outputs of
    ``trace``, and a tuple with the gradient of each input, None for an input without. Where ``cut``
    has several segments, there is a tangent for each output of a segment, and the gradients are a
    dict for each segment, keyed by the name of the value; ``name.call`` is the part of a gradient
    that one call contributes. ``decomposed`` are the changes of the decomposition before, which the
    pass record names too.
    """
    builder = _Builder(trace, differentiate, expand, tags, cut or uncut(trace))
    tangents = builder.tangents(layout)
    if not tangents:
        return trace
    for index in reversed(range(len(trace.calls))):
        builder.step(index)
    builder.editor.append(*builder.calls())
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
    """Gradients of one segment while the joint trace is built.

    ``cotangents`` maps values to their gradients so far. ``apart`` are contributions that autograd
    adds, in its order. ``missing`` are values that need a gradient and for which autograd gets
    None.
    """

    scope: JointScope
    cotangents: dict[str, TensorProxy] = field(default_factory=dict)
    apart: dict[str, TensorProxy] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)


@dataclass
class _Builder:
    """State of the joint trace while it is built; ``segments`` are those of ``cut``.

    ``reads`` maps the index of a call to calls, inserted after it, that read sizes for the
    backward. ``at`` is the index of the call being differentiated, ``here`` its segment.
    ``waiting`` maps the index of a call to ``(segment, value, tangent)`` of tangents that later
    segments contribute. Such a tangent is added when the walk reaches the last use of the value in
    a later segment: eager adds contributions from the last use to the first, and the sum takes the
    strides of the first one added.
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
        # "Backward ops run in the same type that autocast used for corresponding forward ops"
        # (torch/amp/autocast_mode.py): the casts are in the trace, and nothing is cast again.
        off = {k: None for k, v in self.trace.context.items if k.startswith(AUTOCAST) and v}
        context = Context.of(**off, grad=False).over(self.trace.context)
        self.editor = TraceEditor(self.trace, self.tags)
        self.segments = []
        backwards: dict[Any, tuple[Expanded, Expanded]] = {}
        for _ in self.cut.outputs:
            known: dict[str, TensorProxy] = {}
            scope = JointScope(
                self.editor.fresh, context, self.tags, known, self.number, self.expand, backwards
            )
            self.segments.append(_Segment(scope, known))
        self.here = self.segments[0]
        self.numbers = {
            p.expr: p for p in self.trace.inputs if isinstance(p, NumberProxy) and p.expr
        }

    def tangents(self, layout: Layout | None) -> tuple[TensorProxy, ...]:
        """Make a tangent for each value that a segment returns."""
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
        """Index of the last call in another segment that takes each value; results of the program
        aside.
        """
        found = {}
        for index, call in enumerate(self.trace.calls):
            segment = self.cut.segment(call)
            for p in call.flat_args if segment is not None else ():
                if self.cut.makers.get(p.name, segment) != segment:
                    found[p.name] = index
        results = value_names(self.trace.outputs)
        return {name: index for name, index in found.items() if name not in results}

    def detached(self, p: TensorProxy) -> TensorProxy:
        """``p`` with the subclass metadata of a detached tensor,
        which may differ in its context.
        """
        if p.subclass is None:
            return p
        call = BoundSymbol(Symbol("aten", "detach.default"), (p,), context=self.here.scope.context)
        try:
            out = self.expand.require(call).value(call).outputs
        # A subclass need not implement `detach`; the tangent is then taken to be like the output.
        except (CannotExpandError, ExpansionError):
            return p
        return p.replace(subclass=out.subclass)

    def gradients(self) -> Any:
        """Gradients of the inputs; with several segments, a dict for each segment."""
        if self.cut.whole:
            return tuple(self.here.cotangents.get(p.name) for p in self.trace.inputs)
        return tuple(map(self.of_segment, range(len(self.segments))))

    def crossing(self) -> Iterator[TensorProxy]:
        """Tensor subclasses that segments return, where there are several segments."""
        if not self.cut.whole:
            yield from (p for ps in self.cut.outputs for p in ps if p.subclass is not None)

    def of_segment(self, index: int) -> dict[str, TensorProxy]:
        taken = [p.name for p in (*self.trace.inputs, *self.cut.taken(index))]
        known = self.segments[index].cotangents
        return {n: known[n] for n in taken if n in known} | self.segments[index].apart

    def step(self, index: int) -> None:
        """Differentiate the call at ``index`` of the forward if a gradient reaches it."""
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
        """Put the forward of ``done`` in the call's place, and append its backward."""
        call = self.forward[index]
        self.forward[index] = done.forward
        self.backward += done.backward
        self.changes.append(done.change)
        for i, gradient in done.gradients.items():
            self.add(call, call.flat_args[i].name, gradient, total=i in done.totals)
        others = (p for i, p in enumerate(call.flat_args) if i not in done.gradients)
        self.here.missing.update(p.name for p in others if requires_grad(p))

    def add(self, call: BoundSymbol, name: str, gradient: TensorProxy, *, total: bool) -> None:
        """Add the contribution of ``call`` to the gradient of value
        ``name``; a total replaces it.
        """
        known = self.here.cotangents
        if name in self.cut.apart and self.comes_from_outside(name):
            known, name = self.here.apart, f"{name}.{call.label}"
        before = None if total else known.get(name)
        known[name] = gradient if before is None else self.sum(before, gradient, call)

    def comes_from_outside(self, name: str) -> bool:
        maker = self.cut.makers.get(name)
        return maker is None or self.segments[maker] is not self.here

    def asked(self, call: BoundSymbol) -> bool:
        """Check that a call after this one returned None for a
        gradient of an output of ``call``.
        """
        return not self.here.missing.isdisjoint(p.name for p in call.flat_outs)

    def zeros(self, call: BoundSymbol) -> Slots:
        """Make a zero cotangent for a user's backward that runs though no gradient arrives.

        PyTorch's own formulas pass None on. The backward of a Function or of a custom operator is
        called with zeros.
        """
        if not self.asked(call) or not has_own_backward(call):
            return {}
        outs = ((i, p) for i, p in enumerate(call.flat_outs) if isinstance(p, TensorProxy))
        # One is enough: the other tangents of the Function are filled in with zeros.
        index, out = next((i, p) for i, p in outs if requires_grad(p))
        return {Slot("out", index): self.made(call, "zeros_like.default", out)}

    def calls(self) -> Iterator[BoundSymbol]:
        """The forward, with the calls that read sizes for the backward, then the backward."""
        for index, call in enumerate(self.forward):
            yield call
            yield from self.reads.get(index, ())
        yield from self.backward

    def number(self, text: str) -> NumberProxy:
        """The value of size symbol ``text``, read at the current call if no input has it.

        :raises CannotExpandError: if no size of an input, argument or output is ``text``.
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
        """Take the cotangents of the outputs of ``call``; outputs
        that are one tensor share a slot.
        """
        first = {a.output: a.index for a in call.effects.aliases if a.identical and a.kind == "out"}
        found: Slots = {}
        for i, out in enumerate(call.flat_outs):
            cotangent = self.here.cotangents.pop(out.name, None)
            if cotangent is None or not requires_grad(out):
                continue
            # To autograd one tensor has one gradient, under whatever names it is returned.
            slot = Slot("out", first.get(i, i))
            known = found.get(slot)
            found[slot] = cotangent if known is None else self.sum(known, cotangent, call)
        outs = call.flat_outs
        return {
            slot: self.laid_out(self.plain(cotangent, call), outs[slot.index], call)
            for slot, cotangent in found.items()
        }

    def plain(self, cotangent: TensorProxy, call: BoundSymbol) -> TensorProxy:
        """``cotangent``, detached if it is a value of the forward, as autograd does: a backward may
        return a saved value.
        """
        if not cotangent.requires_grad:
            return cotangent
        return self.made(call, "detach.default", cotangent)

    def laid_out(self, cotangent: TensorProxy, out: Proxy, call: BoundSymbol) -> TensorProxy:
        """``cotangent`` of ``out``, copied if ``call`` lacks symbols of its strides.

        A derivation knows the symbols of its call's arguments. It takes other cotangents for laid
        out like ``out`` if that is dense, else for contiguous; so they are copied to that layout.
        """
        symbols = symbols_in(cotangent)
        if not symbols or not isinstance(out, TensorProxy):
            return cotangent
        known = symbols_in((call.args, call.kwargs))
        if set(symbols) <= set(known):
            return cotangent
        hints = hints_of((cotangent, out, *self.trace.inputs, *self.numbers.values()))
        wanted = [like_dense(*layout) for layout in layouts(out, hints, known)]
        if wanted and [like_ones(*layout) for layout in layouts(cotangent, hints, known)] == wanted:
            return cotangent
        # A size that is known to be 4 may have another text, such as `64//s0`.
        sizes = [n if isinstance(n, int) else -1 for n in out.shape]
        if any(n not in (-1, found) for n, found in zip(sizes, cotangent.shape, strict=True)):
            cotangent = self.made(call, "expand.default", cotangent, sizes)
        rows = {"memory_format": Constant("torch.contiguous_format", torch.contiguous_format)}
        strides = wanted[0] if wanted else ()
        order = sorted(range(len(strides)), key=lambda d: -(strides[d] or math.inf))
        if order == sorted(order):
            return self.made(call, "clone.default", cotangent, **rows)
        inner = self.made(call, "permute.default", cotangent, order)
        inner = self.made(call, "clone.default", inner, **rows)
        return self.made(call, "permute.default", inner, [order.index(d) for d in sorted(order)])

    def sum(self, a: TensorProxy, b: TensorProxy, call: BoundSymbol) -> TensorProxy:
        """Add two gradients of one value, in the order in which they came."""
        return self.made(call, "add.Tensor", a, b)

    def made(self, call: BoundSymbol, operator: str, *args: Any, **kwargs: Any) -> TensorProxy:
        """Append a call of aten ``operator`` to the backward of ``call``; return its result."""
        made = self.here.scope.backward(call, Symbol("aten", operator), *args)
        made = made.replace(kwargs=tuple(kwargs.items()))
        facts = self.expand.require(made).value(made)
        made = bind_outputs(made, facts, lambda _: self.here.scope.namer(args[0].name))
        self.backward.append(made)
        out = made.outputs
        assert isinstance(out, TensorProxy)
        return out


def tangent(p: TensorProxy, name: str) -> TensorProxy:
    """Make the tangent of ``p``: with the strides of ``p`` if these are dense, else contiguous."""
    made = p.replace(name=name, requires_grad=False, flags=(), tags=BACKWARD_TAGS)
    return made if is_dense(p) else made.replace(strides=row_major(p.shape))
