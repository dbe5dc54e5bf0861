"""The transforms: JOINT after FUNCTIONAL, SPLIT after JOINT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tj_core.codegen import Program
from tj_core.passes import PassContext
from tj_core.proxy import TensorProxy
from tj_core.records import Split, Transform
from tj_core.stages import Stage
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace
from tj_core.tree import leaves

from tj_autograd.boundary import Pullback, Pullbacks, differentiable
from tj_autograd.derived import original
from tj_autograd.joint import Layout, joint, primal
from tj_autograd.lookup import Lookup
from tj_autograd.split import Halves, is_backward, split

__all__ = ["transforms"]


def transforms() -> tuple[Transform, ...]:
    """The transforms of the plugin."""
    return (
        Transform("joint", _joint, after=Stage.FUNCTIONAL, produces=Stage.JOINT),
        Transform("split", _split, after=Stage.LOWERED, produces=Stage.SPLIT),
    )


def _joint(trace: Trace, context: PassContext) -> Trace:
    if not _closed(trace):
        return trace
    return _made(trace, context)


def _made(trace: Trace, context: PassContext, layout: Layout | None = None) -> Trace:
    return joint(
        trace,
        differentiate=Lookup.of(context),
        expand=context.expand,
        tags=context.tags,
        layout=layout,
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
    if not any(map(is_backward, trace.inputs)):  # nothing needs a gradient
        return trace
    halves = split(trace)

    def assemble(
        forward: Program, compile_later: Callable[[str, Trace], Program]
    ) -> Callable[..., Any]:
        variants = _Variants(trace, halves, context, compile_later)
        return differentiable(halves, forward.function, Pullbacks(variants))

    return Split(halves.forward, {"backward": halves.backward}, assemble, boxed=True)


LIMIT = 8
"""Backward programs per forward; tangents laid out in yet another way are copied."""


@dataclass
class _Variants:
    """Makes the backward programs of one joint trace."""

    joint: Trace
    halves: Halves
    context: PassContext
    compile_later: Callable[[str, Trace], Program]
    usual: Pullback | None = None
    count: int = 0

    def __call__(self, layout: Layout) -> Pullback:
        usual = tuple(p.strides for p in self.halves.tangents if isinstance(p, TensorProxy))
        if layout != usual and self.count < LIMIT:
            found = self.variant(layout)
            if found is not None:
                return found
        if self.usual is None:
            program = self.compile_later("backward", self.halves.backward).function
            every = tuple(range(len(self.halves.saved)))
            self.usual = Pullback(program, every, self.halves.tangents)  # type: ignore[arg-type]
        return self.usual

    def variant(self, layout: Layout) -> Pullback | None:
        """The program for one layout; None if it reads what the forward has not saved."""
        self.count += 1
        again = _made(
            primal(self.joint, lambda c: original(c, self.context.expand)), self.context, layout
        )
        made = split(again)
        position = {p.name: i for i, p in enumerate(self.halves.saved)}
        if not self.saves(made):
            return None
        program = self.compile_later(f"backward_{self.count}", made.backward).function
        tangents = iter(made.tangents)
        expected = tuple(None if how is None else next(tangents) for how in layout)
        return Pullback(
            program,
            tuple(position[p.name] for p in made.saved),
            expected,  # type: ignore[arg-type]
        )

    def saves(self, made: Halves) -> bool:
        """Whether the forward saves the values that ``made`` reads, and they mean the same."""
        mine, theirs = _makers(self.halves), _makers(made)
        known = {p.name for p in self.halves.saved}
        return all(p.name in known and mine.get(p.name) == theirs.get(p.name) for p in made.saved)


def _makers(halves: Halves) -> dict[str, BoundSymbol]:
    return {p.name: call for call in halves.forward.calls for p in call.flat_outs}
