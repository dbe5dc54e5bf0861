"""The transforms: JOINT after FUNCTIONAL, SPLIT after JOINT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tj_core.codegen import Program
from tj_core.passes import PassContext
from tj_core.proxy import TensorProxy
from tj_core.records import Split, Transform
from tj_core.stages import Stage
from tj_core.symbol import BoundSymbol, Symbol
from tj_core.trace import Trace
from tj_core.tree import leaves
from tj_torch.dialect.derive import Derivation, Slot
from tj_torch.dialects import TorchDialects

from tj_autograd.boundary import Pullbacks, differentiable
from tj_autograd.joint import joint
from tj_autograd.split import Halves, split

__all__ = ["transforms"]


def transforms() -> tuple[Transform, ...]:
    """The transforms of the plugin."""
    return (
        Transform("joint", _joint, after=Stage.FUNCTIONAL, produces=Stage.JOINT),
        Transform("split", _split, after=Stage.LOWERED, produces=Stage.SPLIT),
    )


def _derive(context: PassContext) -> Callable[..., Derivation]:
    rule = context.expand.require(BoundSymbol(Symbol("torch", "add")))
    dialects = rule.value
    assert isinstance(dialects, TorchDialects)
    modes = dialects.modes()

    def derive(call: BoundSymbol, tangents: Mapping[Slot, TensorProxy]) -> Derivation:
        return dialects.derive(call, modes, tangents)

    return derive


def _joint(trace: Trace, context: PassContext) -> Trace:
    if not _closed(trace):
        return trace
    return joint(
        trace,
        derive=_derive(context),
        expand=context.expand,
        tags=context.tags,
        name=context.name,
        plugin=context.plugin,
    )


def _closed(trace: Trace) -> bool:
    """Whether ``trace`` neither writes nor returns views, and all of it can be differentiated."""
    returned = {p.name for p in leaves(trace.outputs) if isinstance(p, TensorProxy)}
    for call in trace.calls:
        effects = call.effects
        if effects.mutates or effects.rebinds or "side_effect" in effects.ordered:
            return False
        if any(call.flat_outs[a.output].name in returned for a in effects.aliases):
            return False
    return True


def _split(trace: Trace, context: PassContext) -> Trace | Split:
    if trace.stage is not Stage.JOINT:
        return trace
    halves = split(trace)

    def assemble(
        forward: Program, compile_later: Callable[[str, Trace], Program]
    ) -> Callable[..., Any]:
        return differentiable(halves, forward.function, _pullbacks(halves, compile_later))

    return Split(halves.forward, {"backward": halves.backward}, assemble, boxed=True)


def _pullbacks(halves: Halves, compile_later: Callable[[str, Trace], Program]) -> Pullbacks:
    def make(present: tuple[bool, ...]) -> tuple[Any, bool]:
        if all(present):
            return compile_later("backward", halves.backward).function, False
        whole, _ = pullbacks[(True,) * len(present)]
        return whole, True

    pullbacks = Pullbacks(make)
    return pullbacks
