"""The transform: random calls become the draw of a state, and functions of it.

A draw has the effect that the call had, and keeps its place. The functions have none, so that they
stand in regions. Each is called once: what the backward needs of it was saved before.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import torch
from tj_core.extend import (
    REPLAYED,
    BoundSymbol,
    Constant,
    Device,
    Editor,
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
    """The transform, for tensors on ``devices``; it comes when forward and backward are apart."""
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
        into_regions=False,
    )


def _anchors(trace: Trace, devices: Collection[str]) -> dict[Device, TensorProxy]:
    """A tensor on each of ``devices`` that is there before all calls, which says where to draw."""
    tensors = [p for p in trace.inputs if isinstance(p, TensorProxy) and p.subclass is None]
    return {p.device: p for p in reversed(tensors) if p.device.type in devices}


def _models(trace: Trace) -> dict[str, TensorProxy]:
    """What tensors without values of their own, by name, are made like: numbers can be, too."""
    made = (c for c in trace.calls if c.symbol.qualname == "aten.empty_like.default")
    return {c.outputs.name: c.args[0] for c in made if _alike(c.outputs, c.args[0])}


class _Opening:
    """Random calls that have rules leave the bodies of other calls."""

    def __init__(self, trace: Trace, context: PassContext, rules: RuleTable[Any]) -> None:
        self.trace, self.context, self.rules = trace, context, rules
        self.editor = TraceEditor(trace, context.tags)

    def opened(self) -> Trace:
        """The program, the same object if there are none."""
        for call in self.trace.calls:
            self.step(self.editor.moved(call))
        if not self.editor.changes:
            return self.trace
        return self.editor.done(PassRecord(self.context.name, self.context.plugin))

    def step(self, call: BoundSymbol) -> None:
        """Keep ``call``, or what it consists of."""
        if not self.opens(call):
            self.editor.keep(call)
            return
        start, body = len(self.editor.calls), self.editor.inlined(call)
        for inner in body.calls:
            self.step(self.editor.moved(inner))
        self.editor.stands_for(call, start, body.values)
        self.editor.changed(call, "its parts", self.context.plugin)

    def opens(self, call: BoundSymbol) -> bool:
        """Whether a random call in the body of ``call`` has a rule, and none has ``call``."""
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
    """Calls in the place of ``call``; states are drawn where ``anchor`` is."""

    def __init__(self, call: BoundSymbol, edit: Editor, anchor: TensorProxy) -> None:
        self.call, self.edit, self.anchor = call, edit, anchor
        self.made: list[BoundSymbol] = []

    def do(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of an operator."""
        made = self.edit.call(name, *args, **kwargs)
        self.made.append(made.replace(tags=self.call.tags))
        return made.outputs

    def numbers(self, name: str, like: TensorProxy) -> Any:
        """Numbers for the elements of ``like``, from a state of their own."""
        return self.do(name, self.do(DRAW, self.anchor), like)

    def kept(self, like: TensorProxy, chance: float) -> Any:
        """Where numbers for ``like`` are below ``chance``."""
        return self.do("aten.lt.Scalar", self.numbers(UNIFORM, like), chance)

    def giving(self, *found: TensorProxy) -> Replacement | None:
        """The replacement, if ``found`` can have the metadata of what the call returned."""
        wanted = self.call.flat_outs
        given = [self.laid(v, p) for p, v in zip(wanted, found, strict=True)]
        if not all(_alike(p, v) for p, v in zip(wanted, given, strict=True)):
            return None
        names = (p.name for p in wanted)
        return Replacement(tuple(self.made), dict(zip(names, given, strict=True)))

    def laid(self, value: TensorProxy, like: Any) -> TensorProxy:
        """``value``, row by row if its strides are others than those of ``like``."""
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
    if train is False or not 0 < chance < 1:
        return None
    kept = calls.kept(x, 1 - chance)
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
    if x.dtype.name in LOW:
        found = calls.do("aten._to_copy.default", found, dtype=_dtype(calls.call))
    return calls.giving(found)


def _dtype(call: BoundSymbol) -> Constant:
    """The data type of what ``call`` returns, as an argument."""
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
"""What becomes of random calls, by operator; keywords say nothing that the result does not."""


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
    edit: Editor,
) -> Replacement | None:
    """What ``rule`` makes of a call that draws from the generator of a device in ``anchors``."""
    x, *numbers = call.args
    kwargs = dict(call.kwargs)
    known = isinstance(x, TensorProxy) and x.subclass is None and x.device in anchors
    if not known or x.dtype.name not in (*WIDE, *LOW) or not _draws(call) or 0 in x.shape:
        return None
    if kwargs.get("generator") is not None or len(numbers) > 2:
        return None
    if not all(isinstance(n, int | float) for n in numbers):
        return None
    return rule(_Calls(call, edit, anchors[x.device]), substitution(models)(x), *numbers)
