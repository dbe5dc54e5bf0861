"""The transform that takes traces to FUNCTIONAL, where somebody needs that."""

from __future__ import annotations

import functools
from typing import Literal

from tj_core.passes import PassContext
from tj_core.proxy import TensorProxy
from tj_core.records import Decline, Transform, Wrapped
from tj_core.stages import Stage
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace

from tj_torch.alias.functionalize import OVERWRITTEN, functionalize
from tj_torch.alias.hidden import with_roots
from tj_torch.alias.objects import Unsuitable
from tj_torch.alias.outer import around

__all__ = ["When", "functional"]

When = Literal["auto", "always", "never"]


def functional(when: When) -> Transform:
    """The alias layers; ``when`` says which programs go through them, see ``[tool.tj.torch]``."""

    def apply(trace: Trace, context: PassContext) -> Trace | Wrapped | Decline | None:
        if when == "never" or (when == "auto" and not _needed(trace, context)):
            return None
        if Stage.JOINT in context.produced:
            trace = with_roots(trace, expand=context.expand, tags=context.tags)
        try:
            made = functionalize(trace, expand=context.expand, tags=context.tags)
            claimed = functools.partial(_claimed, context)
            result = around(trace, made, claimed, context.expand)
        except Unsuitable as error:
            return Decline(error.reason, error.source, exact=True)
        if Stage.JOINT in context.produced or not _needed(trace, context):
            return result
        return _refused(result if isinstance(result, Trace) else result.trace) or result

    return Transform("functionalize", apply, after=Stage.ACQUIRED, produces=Stage.FUNCTIONAL)


def _needed(trace: Trace, context: PassContext) -> bool:
    """Whether anything but the program as written is asked for."""
    return Stage.JOINT in context.produced or any(not e.fallback for e in context.executors)


def _refused(trace: Trace) -> Decline | None:
    """Why PyTorch's autograd, which is to differentiate ``trace``, has to see the writes.

    It refuses to use a value that has been written to since; of the functional program it would
    not know. Any value that a call with a gradient takes may be one that autograd saves.
    """
    for call in trace.calls:
        if (
            any(isinstance(p, TensorProxy) and p.requires_grad for p in call.flat_outs)
            and any(OVERWRITTEN.name in p.tags for p in call.flat_args)
            and not any(a.kind == "arg" for a in call.effects.aliases)
            and not (call.symbol.namespace == "tj" or call.symbol.name.endswith(".inverse"))
        ):
            reason = "a value that a gradient may need is written to later"
            return Decline(reason, call.source, exact=True)
    return None


def _claimed(context: PassContext, call: BoundSymbol) -> bool:
    """Whether an executor other than the fallback takes ``call``."""
    for executor in context.executors:
        rule = None if executor.fallback else executor.claims.get(call.symbol)
        if rule and (rule.value.check is None or rule.value.check(call) is True):
            return True
    return False
