"""The transforms: JOINT after FUNCTIONAL, SPLIT after JOINT."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tj_core.codegen import Program
from tj_core.passes import PassContext
from tj_core.records import Decline, Split, Transform, Wrapped
from tj_core.stages import Stage
from tj_core.trace import Trace

from tj_autograd.boundary import differentiable, usual_layout
from tj_autograd.checkpoints import checkpointed
from tj_autograd.costs import Costs
from tj_autograd.descent import Stuck, descended
from tj_autograd.detached import detached
from tj_autograd.identity import one_name_each
from tj_autograd.inlined import inline_calls
from tj_autograd.joint import Layout, joint
from tj_autograd.lookup import Lookup
from tj_autograd.opened import opened
from tj_autograd.plugin import Options
from tj_autograd.split import is_backward, split
from tj_autograd.supported import needs_gradient, refused, unsupported
from tj_autograd.variants import Variants

__all__ = ["transforms"]


def transforms(options: Options) -> tuple[Transform, ...]:
    """The transforms of the plugin, set up by its options."""
    split_ = functools.partial(_split, options=options)
    return (
        inline_calls(),
        Transform("joint", _joint, after=Stage.FUNCTIONAL, produces=Stage.JOINT),
        Transform("split", split_, after=Stage.LOWERED, produces=Stage.SPLIT),
    )


def _joint(trace: Trace, context: PassContext) -> Trace | Decline:
    if not needs_gradient(trace):
        return trace
    trace = one_name_each(trace)
    found = unsupported(trace)
    if found is not None:
        return found
    try:
        joint = _made(trace, context)
    except Stuck as stuck:
        return stuck.decline
    return refused(joint) or joint


def _made(trace: Trace, context: PassContext, layout: Layout | None = None) -> Trace:
    lookup = Lookup.of(context)
    opened = descended(trace, lookup, context)
    made = joint(
        opened.trace,
        differentiate=replace(lookup, refused=opened.refused),
        expand=context.expand,
        tags=context.tags,
        layout=layout,
        name=context.name,
        plugin=context.plugin,
    )
    return checkpointed(opened.explained(made))


def _split(trace: Trace, context: PassContext, *, options: Options) -> Trace | Split | Wrapped:
    if not any(map(is_backward, trace.inputs)):  # nothing that is returned needs a gradient
        if not needs_gradient(trace):
            return trace
        return Wrapped(detached(trace), lambda function, _: torch.no_grad()(function))
    costs, budget = Costs(context.executors), options.memory_budget
    halves = split(opened(trace, costs, context), costs, budget)
    dialects = Lookup.of(context).dialects
    sizes = dialects.sizes
    functional = next(t for t in reversed(context.earlier) if t.stage < Stage.JOINT)

    def assemble(
        forward: Program, compile_later: Callable[[str, Trace], Program]
    ) -> Callable[..., Any]:
        make = Variants(
            halves,
            compile_later,
            functional,
            lambda layout: _made(functional, context, layout),
            lambda other, names: split(opened(other, costs, context), costs, budget, names),
            usual=tuple(map(usual_layout, halves.tangents)),
            within=lambda: dialects.among(sizes),
        )
        return differentiable(halves, forward.function, make)

    return Split(halves.forward, {"backward": halves.backward}, assemble, boxed=True)
