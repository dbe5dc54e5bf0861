"""Transform from stage ACQUIRED to FUNCTIONAL, where a plugin needs it."""

from __future__ import annotations

import functools
from typing import Literal

from tj_core.extend import (
    BoundSymbol,
    Decline,
    Outcome,
    PassContext,
    Stage,
    Trace,
    Transform,
    requires_grad,
)
from tj_core.internal import INVERSE

from tj_torch.functionalize.epilogue import with_epilogue
from tj_torch.functionalize.functionalize import OVERWRITTEN, functionalize
from tj_torch.functionalize.internal_views import with_roots
from tj_torch.functionalize.objects import Unsuitable
from tj_torch.functionalize.parameters import with_parameters
from tj_torch.ops.expansion.kinds import TENSOR_KINDS, Kinds

__all__ = ["When", "functional"]

When = Literal["auto", "always", "never"]


def functional(when: When) -> Transform:
    """Functionalization as a transform.

    ``when`` is the option ``functional`` of ``[tool.tj.torch]``, see `tj_torch.plugin.Options`.
    """

    def apply(trace: Trace, context: PassContext) -> Trace | Outcome:
        if when == "never" or (when == "auto" and not _needed(trace, context)):
            return context.skip_stage()
        given = trace
        if when != "always":
            found = with_parameters(trace, context.executors)
            if isinstance(found, Decline):
                return context.decline(found)
            trace = found
        joint = Stage.JOINT in context.produced
        if joint:
            trace = with_roots(trace, expand=context.expand, tags=context.tags)
        try:
            kinds = Kinds(context.tables[TENSOR_KINDS])
            made = functionalize(
                trace, expand=context.expand, tags=context.tags, kinds=kinds, joint=joint
            )
            claimed = functools.partial(_claimed, context)
            fused = any(executor.fusion is not None for executor in context.executors)
            result, wrapper = with_epilogue(
                given, made, claimed, context.expand, cut=joint, fused=fused
            )
        except Unsuitable as error:
            answer = Decline(error.reason, error.source, keep_all_calls=True)
            return context.decline(answer)
        if not joint and _needed(trace, context):
            refused = _refused(result)
            if refused is not None:
                return context.decline(refused)
        return result if wrapper is None else context.wrap(result, *wrapper)

    return Transform("functionalize", apply, Stage.ACQUIRED, Stage.FUNCTIONAL, falls_back=True)


def _needed(trace: Trace, context: PassContext) -> bool:
    """Test if the session has an executor other than fallbacks, or traces gradients."""
    return Stage.JOINT in context.produced or any(not e.fallback for e in context.executors)


def _refused(trace: Trace) -> Decline | None:
    """Decline for a trace in which PyTorch's autograd would miss that a saved value is written.

    In eager, autograd refuses to use a saved value that was written since; the functional program
    has no such write. Any argument of a differentiated call may be saved.
    """
    for call in trace.calls:
        if (
            any(map(requires_grad, call.flat_outs))
            and any(OVERWRITTEN.name in p.tags for p in call.flat_args)
            and not any(a.kind == "arg" for a in call.effects.aliases)
            and not (call.symbol.namespace == "tj" or call.symbol.variant == INVERSE)
        ):
            reason = "a value that a gradient may need is written to later"
            return Decline(reason, call.source, keep_all_calls=True)
    return None


def _claimed(context: PassContext, call: BoundSymbol) -> bool:
    """Test for a ``call`` that an executor claims."""
    return any(executor.claimed(call) for executor in context.executors)
