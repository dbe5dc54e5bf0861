"""The transform: random calls become a draw of a state, and functions of that state.

A draw has the call's effect, and its place in the order. The functions are pure, so that regions
take them. They are never recomputed: the transform runs after SPLIT, which has saved what the
backward reads.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import torch
from tj_core.extend import (
    REPLAYED,
    BoundSymbol,
    CallEditor,
    Constant,
    Device,
    PassContext,
    PassRecord,
    Replacement,
    RuleTable,
    Stage,
    TensorProxy,
    Trace,
    TraceEditor,
    Transform,
    can_inline,
    rewrite,
    substitution,
)

from tj_nvfuser.draws import DRAW, NORMAL, UNIFORM

__all__ = ["own_numbers"]

WIDE = ("float32", "float64")
LOW = ("float16", "bfloat16")


def own_numbers(devices: Collection[str]) -> Transform:
    """Make the transform, for tensors on ``devices``; it runs after SPLIT."""
    return Transform("random", functools.partial(_apply, devices=devices), Stage.SPLIT)


def _apply(trace: Trace, context: PassContext, *, devices: Collection[str]) -> Trace:
    anchors = _anchors(trace, devices)
    opened = _Opening(trace, context, _rules(anchors, {})).opened()
    return rewrite(
        opened,
        _rules(anchors, _models(opened)),
        expand=context.expand,
        tags=context.tags,
        name=context.name,
        plugin=context.plugin,
        into_bodies=False,  # bodies of calls that are to draw the same numbers again stay
        into_subprograms=False,
    )


def _anchors(trace: Trace, devices: Collection[str]) -> dict[Device, TensorProxy]:
    """A tensor input on each device of the types ``devices``: its
    device tells a draw where to run.
    """
    tensors = [p for p in trace.inputs if isinstance(p, TensorProxy) and p.subclass is None]
    return {p.device: p for p in reversed(tensors) if p.device.type in devices}


def _models(trace: Trace) -> dict[str, TensorProxy]:
    """Map each `empty_like` of its argument's metadata, by name, to the argument, which can stand
    for it.
    """
    made = (c for c in trace.calls if c.symbol.qualname == "aten.empty_like.default")
    return {c.outputs.name: c.args[0] for c in made if _alike(c.outputs, c.args[0])}


class _Opening:
    """Inlines bodies that hold random calls with rules."""

    def __init__(self, trace: Trace, context: PassContext, rules: RuleTable[Any]) -> None:
        self.trace, self.context, self.rules = trace, context, rules
        self.editor = TraceEditor(trace, context.tags)

    def opened(self) -> Trace:
        """The program with these bodies inlined; the same object if there are none."""
        for call in self.trace.calls:
            self.step(self.editor.moved(call))
        if not self.editor.changes:
            return self.trace
        return self.editor.done(PassRecord(self.context.name, self.context.plugin))

    def step(self, call: BoundSymbol) -> None:
        """Keep ``call``, or the calls of its body."""
        if not self.opens(call):
            self.editor.append(call)
            return
        start, body = len(self.editor.calls), self.editor.inlined(call)
        for inner in body.calls:
            self.step(self.editor.moved(inner))
        self.editor.stands_for(call, start, body.values)
        self.editor.changed(call, "its parts", self.context.plugin)

    def opens(self, call: BoundSymbol) -> bool:
        """Check that a random call in the body of ``call`` has a rule, and ``call`` has none."""
        if self.rules.get(call.symbol) is not None or not can_inline(call):
            return False
        if call.symbol.variant == REPLAYED or not _draws(call):
            return False
        assert call.body is not None
        inside = (c for c in call.body.calls if _draws(c))
        return any(self.rules.get(c.symbol) is not None or self.opens(c) for c in inside)


def _draws(call: BoundSymbol) -> bool:
    return any(resource.startswith("random:") for resource in call.effects.ordered)


class _Calls:
    """Builds the calls that replace ``call``; states are drawn on the device of ``anchor``."""

    def __init__(self, call: BoundSymbol, edit: CallEditor, anchor: TensorProxy) -> None:
        self.call, self.edit, self.anchor = call, edit, anchor
        self.made: list[BoundSymbol] = []

    def do(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Append a call of operator ``name``, and return its result."""
        made = self.edit.call(name, *args, **kwargs)
        self.made.append(made.replace(tags=self.call.tags))
        return made.outputs

    def numbers(self, name: str, like: TensorProxy) -> Any:
        """Numbers for the elements of ``like``, from a newly drawn state."""
        return self.do(name, self.do(DRAW, self.anchor), like)

    def kept(self, like: TensorProxy, chance: float) -> Any:
        """Mask of numbers for ``like`` that are below ``chance``."""
        return self.do("aten.lt.Scalar", self.numbers(UNIFORM, like), chance)

    def giving(self, *found: TensorProxy) -> Replacement | None:
        """Make the replacement whose results are ``found``, if they have the call's metadata; else
        None.
        """
        wanted = self.call.flat_outs
        given = [self.laid(v, p) for p, v in zip(wanted, found, strict=True)]
        if not all(_alike(p, v) for p, v in zip(wanted, given, strict=True)):
            return None
        names = (p.name for p in wanted)
        return Replacement(tuple(self.made), dict(zip(names, given, strict=True)))

    def laid(self, value: TensorProxy, like: Any) -> TensorProxy:
        """``value``, contiguous if its strides differ from those of ``like``."""
        if value.strides == like.strides:
            return value
        rows = Constant("torch.contiguous_format", torch.contiguous_format)
        laid: TensorProxy = self.do("aten.clone.default", value, memory_format=rows)
        return laid


def _alike(p: Any, v: TensorProxy) -> bool:
    return (p.shape, p.strides, p.dtype, p.device) == (v.shape, v.strides, v.dtype, v.device)


def _bernoulli(calls: _Calls, x: TensorProxy, chance: Any = 0.5) -> Replacement | None:
    if not 0 <= chance <= 1:  # PyTorch raises
        return None
    kept = calls.kept(x, chance)
    return calls.giving(calls.do("aten._to_copy.default", kept, dtype=_dtype(calls.call)))


def _dropout(calls: _Calls, x: TensorProxy, chance: float, train: Any) -> Replacement | None:
    # PyTorch draws nothing for 0, and for 1 it returns zeros: 1 / (1 - 1) is never taken.
    if train is False or not 0 < chance < 1:
        return None
    kept = calls.kept(x, 1 - chance)
    # In the order of PyTorch's decomposition, whose rounding in 16 bits is the same then.
    left = calls.do("aten.mul.Tensor", x, kept)
    return calls.giving(calls.do("aten.mul.Tensor", left, 1 / (1 - chance)), kept)


def _uniform(calls: _Calls, x: TensorProxy, low: Any = 0, high: Any = 1) -> Replacement | None:
    if x.dtype.name not in WIDE or low > high:  # rounded, some would be 1; PyTorch raises
        return None
    found = calls.numbers(UNIFORM, x)
    if (low, high) != (0, 1):
        found = calls.do("aten.mul.Tensor", found, high - low)
        found = calls.do("aten.add.Tensor", found, low)
    return calls.giving(found)


def _normal(calls: _Calls, x: TensorProxy, mean: Any = 0, std: Any = 1) -> Replacement | None:
    if std < 0:  # PyTorch raises
        return None
    found = calls.numbers(NORMAL, x)
    if (mean, std) != (0, 1):
        found = calls.do("aten.mul.Tensor", found, std)
        found = calls.do("aten.add.Tensor", found, mean)
    # Numbers are made in float32, as `computed_in` says.
    if x.dtype.name in LOW:
        found = calls.do("aten._to_copy.default", found, dtype=_dtype(calls.call))
    return calls.giving(found)


def _dtype(call: BoundSymbol) -> Constant:
    """Data type of the result of ``call``, as an argument."""
    out = call.flat_outs[0]
    assert isinstance(out, TensorProxy)
    return Constant(f"torch.{out.dtype.name}", getattr(torch, out.dtype.name))


RULES = {
    "aten.bernoulli.p": _bernoulli,
    "aten.native_dropout.default": _dropout,
    "aten.normal_functional.default": _normal,
    "aten.rand_like.default": _uniform,
    "aten.randn_like.default": _normal,
    "aten.uniform.default": _uniform,
}
"""Replacements of random calls, by operator. Keywords are
ignored: the result's metadata has them.
"""


def _rules(
    anchors: Mapping[Device, TensorProxy], models: Mapping[str, TensorProxy]
) -> RuleTable[Any]:
    table: RuleTable[Any] = RuleTable("random")
    for name, rule in RULES.items():
        table.set(name, functools.partial(_offered, rule, anchors, models))
    return table


def _offered(
    rule: Any,
    anchors: Mapping[Device, TensorProxy],
    models: Mapping[str, TensorProxy],
    call: BoundSymbol,
    edit: CallEditor,
) -> Replacement | None:
    """Apply ``rule`` to a call that draws from the generator of a device in ``anchors``."""
    x, *numbers = call.args
    kwargs = dict(call.kwargs)
    known = isinstance(x, TensorProxy) and x.subclass is None and x.device in anchors
    if not known or x.dtype.name not in (*WIDE, *LOW) or not _draws(call) or 0 in x.shape:
        return None
    # A state is drawn from the device's own generator, not from one of the user's.
    if kwargs.get("generator") is not None or len(numbers) > 2:
        return None
    if not all(isinstance(n, int | float) for n in numbers):
        return None
    drawn: Replacement = rule(
        _Calls(call, edit, anchors[x.device]), substitution(models)(x), *numbers
    )
    return drawn
