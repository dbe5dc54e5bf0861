"""The transform: bodies of calls on tensor subclasses take their calls' places.

A body has calls of operators on the subclass, whose bodies take their arguments apart, compute with
the dense tensors in them, and put their results together. What one call puts together and another
takes apart again goes from one to the other as it is; so subclasses are left at the boundary, and
executors see operators on dense tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Decline,
    Outcome,
    PassContext,
    PassRecord,
    Proxy,
    Stage,
    Symbol,
    TagSet,
    Trace,
    TraceEditor,
    Transform,
    bind_outputs,
    can_inline,
    dce,
    is_subclass,
    leaves,
    requires_grad,
    with_args,
)
from tj_torch.extend import CROSSING, is_wrapper_class, may_write, resolve
from tj_torch.internal import WITH_STRIDES, WITH_VALUE

from tj_subclass.expansion.flattening import FLATTEN, UNFLATTEN
from tj_subclass.joining import JOINED

__all__ = ["lower_subclasses"]

DETACH = Symbol("torch", "detach")

COPYING = {WITH_STRIDES, WITH_VALUE}
"""Symbols of calls that stand for writes, beside functional forms."""

METHOD = Symbol("tj", "method")
METHODS = {s for symbol in (METHOD, JOINED) for s in (symbol, symbol.as_variant("backward"))}
"""Symbols of calls of methods that are no operations of PyTorch, and of their gradients."""


def lower_subclasses() -> Transform:
    """Make the transform; it comes after gradients, which are of whole calls."""
    return Transform("subclasses", _apply, Stage.JOINT, Stage.LOWERED, falls_back=True)


def _apply(trace: Trace, context: PassContext) -> Trace | Outcome:
    if not any(map(_computes, trace.calls)):
        return context.skip_stage()
    if trace.stage < Stage.JOINT and any(map(_is_tracked, trace.calls)):
        return context.skip_stage()  # PyTorch's autograd is to see the calls on subclasses
    for call in trace.calls:
        if call.effects.mutates or call.effects.rebinds or call.effects.copies_back:
            reason = "memory that a tensor subclass may hold is written"
            return context.decline(Decline(reason, call.source))
        if may_write(call):
            reason = f"{call.symbol} may write to what it is given"
            return context.decline(Decline(reason, call.source))
    return _Lowering(trace, context).lowered()


def _computes(call: BoundSymbol) -> bool:
    """True if ``call``, or its body, computes with the parts of tensors of subclasses."""
    given = any(map(is_subclass, call.flat_args))
    if call.on_subclass or (call.symbol in COPYING and given):
        return True
    # What stands for a function of the user's passes values on, and its body computes with them.
    inner = call.body.calls if call.symbol.namespace == "tj" and call.body is not None else ()
    if call.symbol in METHODS and any(c.symbol in (FLATTEN, UNFLATTEN) for c in inner):
        return True  # a method of the class, as `DTensor.redistribute`
    return given and not call.subprograms and any(map(_computes, inner))


def _is_tracked(call: BoundSymbol) -> bool:
    """True if autograd records ``call``."""
    return any(map(requires_grad, call.flat_outs))


def _returned(trace: Trace) -> frozenset[str]:
    """Names of values that no call reads but methods, whose results the caller gets."""
    read = {p.name for c in trace.calls if c.symbol != METHOD for p in c.flat_args}
    found = {p.name for p in leaves(trace.outputs) if isinstance(p, Proxy)} - read
    for call in reversed(trace.calls):
        if call.symbol == METHOD and any(p.name in found for p in call.flat_outs):
            found |= {p.name for p in call.flat_args} - read
    return frozenset(found)


@dataclass
class _Lowering:
    """Lowering of one program. ``parts`` are the dense tensors in values, by name.

    ``cut`` has the values that require gradients as operators on subclasses see them, by name;
    ``late`` the names of results that somebody else waits for; ``returned``: see `_returned`.
    """

    trace: Trace
    context: PassContext
    parts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    cut: dict[str, Proxy] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    returned: frozenset[str] = frozenset()

    def lowered(self) -> Trace:
        """The program over dense tensors."""
        self.editor = TraceEditor(self.trace, self.context.tags)
        self.tracked = any(map(_is_tracked, self.trace.calls))
        self.returned = _returned(self.trace)
        for call in self.trace.calls:
            self.step(self.editor.moved(call))
        outputs = self.editor.mapped(self.trace.outputs)
        # Those that go from one node of autograd to another are wrapped there, though no call reads
        # them: dead to `dce` but for this.
        crossing = [p for c in self.editor.calls for p in c.flat_outs if CROSSING.name in p.tags]
        record = PassRecord(self.context.name, self.context.plugin)
        live = dce(self.editor.done(record, outputs=(outputs, tuple(crossing))))
        return live.replace(outputs=live.outputs[0])  # with the tags that they have inherited

    def step(self, call: BoundSymbol) -> None:
        """Put the body of ``call`` in its place, unless it is nobody's or an executor's."""
        if not _computes(call) or not can_inline(call) or self.is_claimed(call) or self.waits(call):
            self.place(call)
        elif not self.tracked and any(map(requires_grad, call.flat_args)):
            self.below_autograd(call)
        else:
            self.inline(call)

    def inline(self, call: BoundSymbol) -> None:
        """Put the body of ``call`` in its place."""
        start, body = len(self.editor.calls), self.editor.inlined(call)
        for inner in body.calls:
            self.step(self.editor.moved(inner))
        self.editor.stands_for(call, start, body.values)
        for whole in call.flat_outs:
            self.pass_on(whole, call)
        self.editor.changed(call, "dense tensors", self.context.plugin)

    def pass_on(self, whole: Proxy, call: BoundSymbol) -> None:
        """Give the parts of ``whole`` its tags that say what the backward gets of it."""
        known = self.context.tags
        said = {n: value for n, value in whole.tags.items() if known[n].group == "residual"}
        if said:
            for part in self.parts.get(self.editor.current(whole).name, ()):
                self.editor.inherit(part, TagSet(said), call.source)

    def below_autograd(self, call: BoundSymbol) -> None:
        """Put the body of ``call`` in its place, over values without gradients.

        No call requires a gradient here, and operators on subclasses run where autograd does not
        look. But the call of a class makes a tensor that holds its arguments: the call
        stays, for readers of the parts, and for a caller that gets the tensor.
        """
        plain = with_args(call, self.detached)
        if not is_wrapper_class(resolve(call.symbol)):
            self.inline(plain)
            return
        self.editor.append(call)
        twin = self.editor.renamed(plain)
        self.inline(twin)
        for whole, other in zip(call.flat_outs, twin.flat_outs, strict=True):
            if parts := self.parts.get(self.editor.current(other).name):
                self.parts[whole.name] = parts

    def detached(self, p: Proxy) -> Proxy:
        """``p`` without a gradient."""
        if not requires_grad(p):
            return p
        if p.name not in self.cut:
            bare = BoundSymbol(DETACH, (p,), context=self.trace.context)
            facts = self.context.expand.require(bare).value(bare)
            call = bind_outputs(bare, facts, lambda _: self.editor.fresh(p.name))
            self.editor.append(call)
            (self.cut[p.name],) = call.flat_outs
        return self.cut[p.name]

    def place(self, call: BoundSymbol) -> None:
        """Keep ``call``, unless it takes apart what is known in parts."""
        if call.symbol == FLATTEN:
            (whole,) = call.flat_args
            known = self.parts.get(whole.name)
            if known is not None and len(known) == len(call.flat_outs):  # none is a constant
                for out, part in zip(call.flat_outs, known, strict=True):
                    self.editor.substitute(out, part, call.source)
                return
            self.parts[whole.name] = call.flat_outs
        elif call.symbol == UNFLATTEN:
            (whole,) = call.flat_outs
            self.parts[whole.name] = call.args[1]
        self.editor.append(call)

    def waits(self, call: BoundSymbol) -> bool:
        """True for a method that leaves the wait for its result to whoever reads it.

        In eager the caller may get such a result, an `AsyncCollectiveTensor`. Calls inside of the
        program get what has been waited for: a kernel of a region would read a tensor without data.
        """
        waiting = call.symbol in (METHOD, JOINED)
        if not waiting or not any(p.name in self.returned for p in call.flat_outs):
            return False
        kwargs = call.args[-1][2] if call.symbol == JOINED else dict(call.kwargs)
        found = bool(kwargs.get("async_op"))
        found = found or any(p.name in self.late for p in call.flat_args)
        if found:
            self.late.update(p.name for p in call.flat_outs)
        return found

    def is_claimed(self, call: BoundSymbol) -> bool:
        """True if an executor other than the fallback has ``call``, or claims all of it."""
        if call.executor is not None:
            return True
        # The fallback claims every call, whatever it is on.
        return any(e.claimed(call) for e in self.context.executors if not e.fallback)
