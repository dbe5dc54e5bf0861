"""The plugin's transforms: inlining, JOINT after FUNCTIONAL, SPLIT after LOWERED."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    CannotExpandError,
    Decline,
    Outcome,
    PassContext,
    Stage,
    Trace,
    Transform,
    detached,
)
from tj_torch.internal import pass_over_package, uncaptured

from tj_autograd.joint.build import Layout, NotDifferentiable, joint
from tj_autograd.joint.checkpoints import checkpointed
from tj_autograd.joint.decompose import decomposed
from tj_autograd.joint.identity import one_name_each
from tj_autograd.joint.inlining import inline_calls
from tj_autograd.joint.lookup import Lookup
from tj_autograd.joint.refusals import (
    needs_gradient,
    recorded_alone,
    refused_by_autograd,
    uncuttable,
    unsupported,
)
from tj_autograd.run.assembly import Splitting
from tj_autograd.run.boundary import Compiled, run_by_nodes
from tj_autograd.run.packages import training_parts
from tj_autograd.split.costs import Costs
from tj_autograd.split.deliveries import segments_of
from tj_autograd.split.halves import is_backward

if TYPE_CHECKING:
    from tj_autograd.joint.segments import Cut
    from tj_autograd.options import Options

__all__ = ["transforms"]


def transforms(options: Options) -> tuple[Transform, ...]:
    """Make the plugin's transforms from its options."""
    split_ = functools.partial(_split, options=options)
    pass_over_package("tj_autograd")
    _leave_backwards()
    return (
        inline_calls(),
        Transform("joint", _joint, Stage.FUNCTIONAL, Stage.JOINT, falls_back=True),
        Transform(
            "split",
            split_,
            Stage.LOWERED,
            Stage.SPLIT,
            falls_back=True,
            restore=functools.partial(_restore, options=options),
            training=training_parts,
        ),
    )


@functools.cache
def _leave_backwards() -> None:
    Compiled.backward = staticmethod(uncaptured(Compiled.backward))  # type: ignore[method-assign]
    run_by_nodes(Compiled.backward)


def _joint(trace: Trace, context: PassContext) -> Trace | Outcome:
    if not needs_gradient(trace):
        return trace
    trace = one_name_each(trace)
    records = Lookup.of(context).records
    found = unsupported(trace)
    if found is None and not context.complete:
        found = recorded_alone(trace, records)
    if found is not None:
        return context.decline(found)
    segments = segments_of(trace, records)
    found = uncuttable(trace, segments)
    if found is not None:
        return context.decline(found)
    try:
        joint = _made(trace, context, segments)
    except NotDifferentiable as refusal:
        return context.decline(refusal.decline)
    except CannotExpandError as error:
        return context.decline(Decline(error.message, error.source))
    refused = refused_by_autograd(joint)
    return context.decline(refused) if refused is not None else joint


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
    costs = Costs.of(context)
    return checkpointed(made, context.tags, costs.keeps_state, costs.repeats)


def _split(trace: Trace, context: PassContext, *, options: Options) -> Trace | Outcome:
    if not any(map(is_backward, trace.inputs)):  # nothing that is returned needs a gradient
        if not needs_gradient(trace):
            return trace
        return _without_gradients(detached(trace), context)
    functional = one_name_each(next(t for t in reversed(context.earlier) if t.stage < Stage.JOINT))
    made = next(t for t in context.earlier if t.stage >= Stage.JOINT)
    return Splitting(functional, context, options, _made).split(trace, made)


def _restore(context: PassContext, kept: Any, *, options: Options) -> Outcome:
    """The outcome of `_split` for a program found on disk."""
    if kept is None:
        return _without_gradients(context.earlier[-1], context)
    return Splitting(kept["functional"], context, options, _made).restore(kept)


def _without_gradients(trace: Trace, context: PassContext) -> Outcome:
    return context.wrap(trace, lambda function, _: torch.no_grad()(function), kept=None)
