"""JOINT: a functional trace and its gradient in one trace.

The calls are gone through backwards. Each whose outputs have cotangents, and some of whose
arguments need a gradient, is differentiated: its forward takes its place, its backward follows
those of the calls after it. All others are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tj_core.errors import CannotExpandError
from tj_core.expand import Expand, bind_outputs
from tj_core.proxy import NumberProxy, Proxy, TensorProxy
from tj_core.rules import RuleTable
from tj_core.stages import Stage
from tj_core.symbol import BoundSymbol, Context, Symbol
from tj_core.tags import TagRegistry, TagSet
from tj_core.trace import Change, Namer, PassRecord, Trace
from tj_core.tree import leaves
from tj_torch.dialect.derive import Slot
from tj_torch.dialect.sizes import is_dense, row_major

__all__ = [
    "BACKWARD_TAGS",
    "USUAL",
    "Differentiate",
    "Differentiated",
    "Layout",
    "Slots",
    "Workshop",
    "carries",
    "joint",
    "tangent",
]

BACKWARD_TAGS = TagSet(["BACKWARD"])

Slots = dict[Slot, TensorProxy]
"""The cotangents of a call's outputs."""

Layout = tuple[tuple[Any, ...] | None, ...]
"""The strides of each tangent of a trace: None for one that does not exist, `USUAL` for one that
is laid out as `tangent` says."""

USUAL: Any = ("usual",)


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
class Workshop:
    """What differentiating a call may ask of the joint trace.

    ``context`` is the context of backward calls; ``cotangents`` the gradients known so far, by the
    value's name. ``number`` gives the value of a symbol in sizes, read off what is there at the
    call that is differentiated.
    """

    namer: Namer
    context: Context
    tags: TagRegistry
    cotangents: dict[str, TensorProxy]
    number: Callable[[str], NumberProxy]

    def backward(self, call: BoundSymbol, symbol: Symbol, *args: Any) -> BoundSymbol:
        """A backward call of ``call``, without outputs yet: where it belongs and its tags."""
        traveling = self.tags.traveling(call.tags, "to_backward")
        return BoundSymbol(
            symbol,
            args,
            context=self.context,
            tags=self.tags.merge(traveling, BACKWARD_TAGS, call.source),
            source=call.source,
            parent=call.label,
        )


Differentiate = Callable[[BoundSymbol, Slots, Workshop], Differentiated]
"""Differentiates a call for the cotangents of its outputs."""


def joint(
    trace: Trace,
    *,
    differentiate: Differentiate,
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
    """
    builder = _Builder(trace, differentiate, expand, tags)
    tangents = builder.tangents(layout)
    if not tangents:
        return trace
    for index in reversed(range(len(trace.calls))):
        builder.step(index)
    gradients = tuple(builder.cotangents.get(p.name) for p in trace.inputs)
    record = PassRecord(name, plugin, tuple(builder.changes))
    return trace.after(
        record,
        inputs=(*trace.inputs, *tangents),
        calls=tuple(builder.calls()),
        outputs=(trace.outputs, gradients),
        stage=Stage.JOINT,
    )


def carries(call: BoundSymbol) -> bool:
    """Whether a gradient may flow through ``call``: one of its outputs has one to give."""
    if call.context.get("grad") is False or call.context.get("inference"):
        return False
    return any(map(_differentiable, call.flat_outs)) and any(map(_differentiable, call.flat_args))


def _differentiable(p: Proxy) -> bool:
    return isinstance(p, TensorProxy) and p.requires_grad


@dataclass
class _Builder:
    """The joint trace on its way; ``cotangents`` are the gradients known so far, by value.

    ``reads`` are the calls that read sizes for the backward, by the call that they follow; ``at``
    is the one being differentiated.
    """

    trace: Trace
    differentiate: Differentiate
    expand: RuleTable[Expand]
    tags: TagRegistry
    backward: list[BoundSymbol] = field(default_factory=list)
    cotangents: dict[str, TensorProxy] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    reads: dict[int, list[BoundSymbol]] = field(default_factory=dict)
    at: int = 0

    def __post_init__(self) -> None:
        self.forward = list(self.trace.calls)
        off = {k: None for k, v in self.trace.context.items if k.startswith("autocast.") and v}
        context = Context.of(**off, grad=False).over(self.trace.context)
        namer = Namer(self.trace.names())
        self.workshop = Workshop(namer, context, self.tags, self.cotangents, self.number)
        self.numbers = {
            p.expr: p for p in self.trace.inputs if isinstance(p, NumberProxy) and p.expr
        }

    def tangents(self, layout: Layout | None) -> tuple[TensorProxy, ...]:
        """A tangent for each output that carries a gradient and is no input."""
        known = {p.name for p in self.trace.inputs}
        found = {}
        for p in leaves(self.trace.outputs):
            if isinstance(p, TensorProxy) and p.requires_grad and p.name not in known:
                found[p.name] = p
        strides = layout or (USUAL,) * len(found)
        for p, how in zip(found.values(), strides, strict=True):
            made = tangent(p, self.workshop.namer(f"grad_{p.name}"))
            if how is not None:
                made = made if how == USUAL else made.replace(strides=how)
                self.cotangents[p.name] = made
        return tuple(self.cotangents.values())

    def step(self, index: int) -> None:
        """Differentiate one call of the forward, if a gradient reaches it."""
        self.at, call = index, self.forward[index]
        slots = self.slots(call) if carries(call) else {}
        if not slots:
            return
        done = self.differentiate(call, slots, self.workshop)
        self.forward[index] = done.forward
        self.backward += done.backward
        self.changes.append(done.change)
        for i, gradient in done.gradients.items():
            name = call.flat_args[i].name
            known = None if i in done.totals else self.cotangents.get(name)
            self.cotangents[name] = gradient if known is None else self.sum(known, gradient, call)

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
        made = bind_outputs(made, facts, lambda _: self.workshop.namer(f"{p.name}_size"))
        self.reads.setdefault(self.at, []).append(made)
        assert isinstance(made.outputs, NumberProxy)
        return made.outputs

    def slots(self, call: BoundSymbol) -> Slots:
        """The outputs of ``call`` that have a cotangent, with it; one object counts once."""
        first = {a.output: a.index for a in call.effects.aliases if a.identical and a.kind == "out"}
        found: Slots = {}
        for i, out in enumerate(call.flat_outs):
            cotangent = self.cotangents.pop(out.name, None)
            if cotangent is None or not _differentiable(out):
                continue
            slot = Slot("out", first.get(i, i))
            known = found.get(slot)
            found[slot] = cotangent if known is None else self.sum(known, cotangent, call)
        return found

    def sum(self, a: TensorProxy, b: TensorProxy, call: BoundSymbol) -> TensorProxy:
        """The sum of two gradients of one value, in the order in which they came."""
        made = self.workshop.backward(call, Symbol("aten", "add.Tensor"), a, b)
        facts = self.expand.require(made).value(made)
        made = bind_outputs(made, facts, lambda _: self.workshop.namer(a.name))
        self.backward.append(made)
        out = made.outputs
        assert isinstance(out, TensorProxy)
        return out


def tangent(p: TensorProxy, name: str) -> TensorProxy:
    """The tangent of ``p``: laid out like it where that is dense, else contiguous."""
    made = p.replace(name=name, requires_grad=False, flags=(), tags=BACKWARD_TAGS)
    return made if is_dense(p) else made.replace(strides=row_major(p.shape))
