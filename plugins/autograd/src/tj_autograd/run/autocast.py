"""Backwards that are called under autocast.

In eager, formulas run under the autocast that is active around ``backward()``. If that casts the
arguments of any call of the backward, PyTorch's autograd computes the gradients.
"""

from __future__ import annotations

from collections.abc import Iterable

from tj_core.extend import BoundSymbol, Context, Expand, RuleTable, TjError

__all__ = ["casts"]


def casts(calls: Iterable[BoundSymbol], ambient: Context, expand: RuleTable[Expand]) -> bool:
    """Check that autocast as in ``ambient`` casts an argument of any of ``calls``, or may do so."""
    return any(_casts(call, ambient, expand) for call in calls)


def _casts(call: BoundSymbol, ambient: Context, expand: RuleTable[Expand]) -> bool:
    if call.symbol.variant and call.body is not None:  # the formula of a call that stayed whole
        return casts(call.body.calls, ambient, expand)
    ambient = ambient.over(call.context)
    # The autocast around `backward()` is what the call runs under anyway.
    if call.context == ambient:
        return False
    rule = expand.of(call)
    if rule is None or call.subprograms:
        return True
    call = call.replace(body=None)
    try:
        outside, inside = (rule.value(call.replace(context=c)) for c in (call.context, ambient))
    except TjError:
        return True
    # A kernel: whether it casts inside is unknown.
    if outside.body is None or inside.body is None:
        return True
    return [c.symbol for c in outside.body.calls] != [c.symbol for c in inside.body.calls]
