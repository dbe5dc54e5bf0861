"""The transform that takes traces to FUNCTIONAL, where somebody needs that."""

from __future__ import annotations

import functools
from typing import Literal

from tj_core.passes import PassContext
from tj_core.records import Decline, Transform, Wrapped
from tj_core.stages import Stage
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace

from tj_torch.alias.functionalize import functionalize
from tj_torch.alias.objects import Unsuitable
from tj_torch.alias.outer import around

__all__ = ["When", "functional"]

When = Literal["auto", "always", "never"]


def functional(when: When) -> Transform:
    """The alias layers; ``when`` says which programs go through them, see ``[tool.tj.torch]``."""

    def apply(trace: Trace, context: PassContext) -> Trace | Wrapped | Decline | None:
        if when == "never" or (when == "auto" and not _needed(trace, context)):
            return None
        try:
            made = functionalize(trace, expand=context.expand, tags=context.tags)
            return around(trace, made, functools.partial(_claimed, context))
        except Unsuitable as error:
            return Decline(error.reason, error.source)

    return Transform("functionalize", apply, after=Stage.ACQUIRED, produces=Stage.FUNCTIONAL)


def _needed(trace: Trace, context: PassContext) -> bool:
    """Whether anything but the program as written is asked for."""
    return Stage.JOINT in context.produced or any(not e.fallback for e in context.executors)


def _claimed(context: PassContext, call: BoundSymbol) -> bool:
    """Whether an executor other than the fallback takes ``call``."""
    for executor in context.executors:
        rule = None if executor.fallback else executor.claims.get(call.symbol)
        if rule and (rule.value.check is None or rule.value.check(call) is True):
            return True
    return False
