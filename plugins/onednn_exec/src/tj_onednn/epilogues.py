"""Layers fused with the activation that follows: one oneDNN operator for both.

An executor that fuses layers and activations alone. In a region, a layer whose only reader is an
activation becomes one call with it, if that was measured to be faster than PyTorch's two. Every
other call runs as it would outside of a region.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tj_core.extend import (
    BoundSymbol,
    Claim,
    Constant,
    Decline,
    Executor,
    Fused,
    Fusion,
    FusionRegion,
    Proxy,
    RuleTable,
    TensorProxy,
    define,
    last_uses,
)
from tj_torch.extend import resolve

from tj_onednn import kernels
from tj_onednn.choice import Candidate, Choices
from tj_onednn.layers import CONVOLUTION, LINEAR, disabled, no_images, product_in
from tj_onednn.names import CONVOLUTIONS, lost
from tj_onednn.operands import unfit

if TYPE_CHECKING:
    from tj_onednn.kernels import Post

__all__ = ["ACTIVATIONS", "epilogue_executor", "pairs"]


def _named(name: str) -> Callable[[BoundSymbol], Post | None]:
    return lambda call: (name, [], "") if len(call.args) == 1 else None


def _gelu(call: BoundSymbol) -> Post | None:
    given = (*call.args[1:], *(value for _, value in call.kwargs), "none")
    return ("gelu", [], given[0]) if given[0] in ("none", "tanh") else None


def _leaky_relu(call: BoundSymbol) -> Post | None:
    slope = (*call.args[1:], *(value for _, value in call.kwargs), 0.01)[0]
    return ("leaky_relu", [slope], "") if isinstance(slope, float) else None


def _spelled(name: str, *homes: str) -> list[str]:
    return [*(f"{home}.{name}" for home in homes), f"aten.{name}.default"]


NN, TOP = "torch.nn.functional", "torch"
ACTIVATIONS: dict[str, Callable[[BoundSymbol], Post | None]] = {
    **dict.fromkeys(_spelled("relu", NN, TOP), _named("relu")),
    **dict.fromkeys(_spelled("sigmoid", NN, TOP), _named("sigmoid")),
    **dict.fromkeys(_spelled("tanh", NN, TOP), _named("tanh")),
    **dict.fromkeys(_spelled("silu", NN), _named("swish")),
    **dict.fromkeys(_spelled("hardswish", NN), _named("hardswish")),
    **dict.fromkeys(_spelled("gelu", NN), _gelu),
    **dict.fromkeys(_spelled("leaky_relu", NN), _leaky_relu),
}
"""Functions from an activation's call to its oneDNN form (`Post`), by name."""


Alone: TypeAlias = "Callable[[BoundSymbol], Callable[..., Any] | None]"
"""Returns the kernel for a call outside of a pair; None for PyTorch's."""


def epilogue_executor(choices: Choices, alone: Alone) -> Executor:
    """Make the executor, which claims no call by itself."""
    fusion = Fusion(
        can_fuse,
        lambda region: _fused(region, choices, alone),
        kernel=lambda call: False,  # a layer is not run again to save memory
        check=lambda calls: True if pairs(calls) else Decline("no activation follows a layer"),
        detached=False,
    )
    claims: RuleTable[Claim] = RuleTable("claim")
    return Executor("onednn_epilogues", claims, fusion=fusion)


def can_fuse(call: BoundSymbol) -> bool | Decline:
    """Decide if ``call`` is a layer or activation in float32 that oneDNN supports."""
    reason = _reason(call)
    return True if reason is None else Decline(reason)


def _reason(call: BoundSymbol) -> str | None:
    name = call.symbol.qualname
    if name not in ACTIVATIONS and name not in (LINEAR, CONVOLUTION):
        return "is neither a layer nor an activation"
    reason = disabled() or unfit(call, by_rows=name == LINEAR)
    if reason is not None:
        return reason
    out = call.flat_outs[0]
    if isinstance(out, TensorProxy) and out.dtype.name != "float32":
        return "PyTorch rounds between a layer and an activation"
    if name == CONVOLUTION:
        return lost(CONVOLUTIONS) or no_images(call)
    if name == LINEAR:
        return None if product_in(call) is not None else "it is not one product of matrices"
    return None if ACTIVATIONS[name](call) is not None else "oneDNN has it not in this form"


def pairs(calls: Sequence[BoundSymbol], outputs: Sequence[Proxy] = ()) -> dict[str, BoundSymbol]:
    """Map the label of each activation to its layer, where it is the layer's only reader."""
    layers = {c.label: c for c in calls if c.symbol.qualname not in ACTIVATIONS}
    uses = Counter(p.name for c in calls for p in c.flat_args)
    uses.update(p.name for p in outputs)
    following = (c for c in calls if c.symbol.qualname in ACTIVATIONS)
    return {
        c.label: layers[name]
        for c in following
        if (name := c.flat_args[0].name) in layers and uses[name] == 1
    }


def _fused(region: FusionRegion, choices: Choices, alone: Alone) -> Fused:
    """Compile the region to straight-line Python."""
    calls = region.body.calls
    together = pairs(calls, region.outputs)
    text = _Text()
    inside: set[str] = set()
    for call in reversed(calls):
        why = ""
        if call.label in together:
            layer = together[call.label]
            candidate = _candidate(layer, call)
            answer = choices.ask(layer, candidate)
            if not isinstance(answer, Decline):
                inside.add(layer.label)
                text.put(candidate.kernel, layer.replace(outputs=call.outputs))
                continue
            why = answer.reason
        if call.label not in inside:
            text.put(alone(call) or region.resolve(call), call, why)
    return text.function(region)


def _candidate(layer: BoundSymbol, activation: BoundSymbol) -> Candidate:
    post = ACTIVATIONS[activation.symbol.qualname](activation)
    assert post is not None
    apart, then = resolve(layer.symbol), resolve(activation.symbol)
    more, named = activation.args[1:], dict(activation.kwargs)

    def both(*args: Any, **kwargs: Any) -> Any:
        return then(apart(*args, **kwargs), *more, **named)

    name, numbers, algorithm = post
    way = f"float32 then {name} {numbers} {algorithm}".rstrip()
    kernel = kernels.linear if layer.symbol.qualname == LINEAR else kernels.convolution
    return Candidate(way, functools.partial(kernel, post=post), theirs=both)


class _Text:
    """The text of a region's function, written from its end to its beginning."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self.steps: list[tuple[BoundSymbol, str, str]] = []

    def put(self, function: Callable[..., Any], call: BoundSymbol, why: str = "") -> None:
        """Prepend ``call``, run by ``function``; ``why`` it was not fused becomes a comment."""
        named = function.func if isinstance(function, functools.partial) else function
        known = f"{getattr(named, '__name__', 'call')}_{len(self.steps)}"
        self.scope[known] = function
        given = [self.spelled(arg) for arg in call.args]
        given += [f"{key}={self.spelled(arg)}" for key, arg in call.kwargs]
        self.steps.insert(0, (call, f"{call.label} = {known}({', '.join(given)})", why))

    def spelled(self, arg: Any) -> str:
        if isinstance(arg, Proxy):
            return arg.name
        name = f"constant_{len(self.scope)}"
        self.scope[name] = arg.value if isinstance(arg, Constant) else arg
        return repr(arg) if isinstance(arg, str | int | float | None) else name

    def function(self, region: FusionRegion) -> Fused:
        """Compile the function, which takes a list of the inputs and empties it."""
        lines = [f"def region(_box):\n    {_listed(region.inputs)} = _box\n    _box.clear()"]
        ends = last_uses([call for call, _, _ in self.steps], region.outputs)
        for (_, text, why), dead in zip(self.steps, ends, strict=True):
            freed = f"; del {', '.join(dead)}" if dead else ""
            lines.append(f"    {text}{freed}" + (f"  # two calls: {why}" if why else ""))
        source = "\n".join([*lines, f"    return {_listed(region.outputs)}"])
        return Fused(define(source, "region", self.scope), boxed=True, source=source)


def _listed(values: Sequence[Proxy]) -> str:
    return "".join(f"{p.name}, " for p in values)
