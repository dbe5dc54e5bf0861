"""The transforms: JOINT after FUNCTIONAL, SPLIT after JOINT."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tj_core.extend import (
    CannotExpandError,
    Decline,
    PassContext,
    Program,
    Stage,
    Trace,
    Transform,
)
from tj_torch.extend import pass_over_package, uncaptured

from tj_autograd.joint.build import Layout, NotDifferentiable, joint
from tj_autograd.joint.checkpoints import checkpointed
from tj_autograd.joint.decompose import decomposed
from tj_autograd.joint.detached import detached
from tj_autograd.joint.identity import one_name_each
from tj_autograd.joint.inlined import inline_calls
from tj_autograd.joint.lookup import Lookup
from tj_autograd.joint.segments import Cut, cut
from tj_autograd.joint.supported import needs_gradient, overwritten, uncuttable, unsupported
from tj_autograd.options import Options
from tj_autograd.run.boundary import Compiled, default_layout, differentiable
from tj_autograd.run.depended import depended
from tj_autograd.run.freed import frees
from tj_autograd.run.reads import READS
from tj_autograd.run.variants import Variants
from tj_autograd.split.cheap import RECOMPUTE
from tj_autograd.split.costs import Costs
from tj_autograd.split.decompositions import with_decompositions
from tj_autograd.split.halves import is_backward, split

__all__ = ["transforms"]


def transforms(options: Options) -> tuple[Transform, ...]:
    """The transforms of the plugin, set up by its options."""
    split_ = functools.partial(_split, options=options)
    pass_over_package("tj_autograd")
    uncaptured(Compiled.backward)
    return (
        inline_calls(),
        Transform("joint", _joint, Stage.FUNCTIONAL, Stage.JOINT, falls_back=True),
        Transform("split", split_, Stage.LOWERED, Stage.SPLIT, falls_back=True),
    )


def _joint(trace: Trace, context: PassContext) -> Trace:
    if not needs_gradient(trace):
        return trace
    trace = one_name_each(trace)
    found = unsupported(trace)
    if found is not None:
        return context.decline(found)
    segments = cut(trace, Lookup.of(context).records)
    found = uncuttable(trace, segments)
    if found is not None:
        return context.decline(found)
    try:
        joint = _made(trace, context, segments)
    except NotDifferentiable as refusal:
        return context.decline(refusal.decline)
    except CannotExpandError as error:
        return context.decline(Decline(error.message, error.source))
    written = overwritten(joint)
    return context.decline(written) if written is not None else joint


def _made(trace: Trace, context: PassContext, segments: Cut, layout: Layout | None = None) -> Trace:
    lookup = Lookup.of(context)
    found = decomposed(trace, lookup, context)
    made = joint(
        found.trace,
        differentiate=replace(lookup, kept_whole=found.kept_whole),
        expand=context.expand,
        tags=context.tags,
        layout=layout,
        cut=segments,
        decomposed=found.decomposed,
        name=context.name,
        plugin=context.plugin,
    )
    return checkpointed(made, context.tags, _costs(context).keeps_state)


def _costs(context: PassContext) -> Costs:
    return Costs(context.executors, context.tables[RECOMPUTE])


def _split(trace: Trace, context: PassContext, *, options: Options) -> Trace:
    if not any(map(is_backward, trace.inputs)):  # nothing that is returned needs a gradient
        if not needs_gradient(trace):
            return trace
        context.wrap(lambda function, _: torch.no_grad()(function))
        return detached(trace)
    costs, budget = _costs(context), options.memory_budget
    functional = one_name_each(next(t for t in reversed(context.earlier) if t.stage < Stage.JOINT))
    segments = cut(functional, Lookup.of(context).records)
    made = next(t for t in context.earlier if t.stage >= Stage.JOINT)
    order = {call.label: i for i, call in enumerate(made.calls)}
    decompose = functools.partial(
        with_decompositions, costs=costs, context=context, merge=segments.whole
    )
    whole = decompose(trace)
    halves = split(whole, costs, budget, cut=segments, prefer=options.prefer)
    dialects, reads = Lookup.of(context).dialects, context.tables[READS]
    sizes = dialects.sizes

    def variants(index: int, compile_later: Callable[[str, Trace], Program]) -> Variants:
        part = halves.parts[index]
        gradients = whole.outputs[1] if segments.whole else whole.outputs[1][index]
        return Variants(
            halves,
            segments,
            index,
            compile_later,
            functional,
            lambda layout: _made(functional, context, segments, layout),
            lambda joint, layout, names: split(
                decompose(joint), costs, budget, names, segments, layout
            ),
            default=tuple(map(default_layout, part.tangents)),
            within=lambda: dialects.among(sizes),
            depended=depended(whole, gradients, [p.name for p in segments.taken(index)], reads),
            reads=reads,
            expand=context.expand,
            frees=frees(made, segments, index),
            strict=context.strict,
        )

    def assemble(
        forward: Program, compile_later: Callable[[str, Trace], Program]
    ) -> Callable[..., Any]:
        made = [variants(i, compile_later) for i in range(len(halves.parts))]
        return differentiable(halves, forward.function, made, order)

    named = {
        segments.name(i): part.backward
        for i, part in enumerate(halves.parts)
        if i not in segments.views
    }
    context.assemble(named, assemble, boxed=True, flexible=halves.flexible)
    return halves.forward
