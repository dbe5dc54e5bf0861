"""Numbers that a program reads from counts it has just added to: computed from the old counts.

An optimizer adds one to the count of each parameter, and reads a number from it. That number may be
refused, so that a region which makes the count must not write it before. Where the number is known
without, the region that updates the parameter writes the count, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Constant,
    PassContext,
    Proxy,
    Replacement,
    RuleTable,
    Stage,
    Symbol,
    TensorProxy,
    Trace,
    Transform,
    leaves,
    substituted,
)

__all__ = ["counting"]

ITEM = "aten._local_scalar_dense.default"
ADD = "aten.add.Tensor"
COPY = "aten.clone.default"
MOST = 1 << 24
"""The largest number up to which float32 has all integers."""


def counting() -> Transform:
    """Make the transform."""
    return Transform("inductor-sums", _counted, after=Stage.SPLIT, falls_back=True)


def _counted(trace: Trace, context: PassContext) -> Trace:
    if trace.stage < Stage.SPLIT:
        return trace
    inputs = {p.name for p in trace.inputs}
    known = {p.name: n for call in trace.calls for p, n in _constants(call)}
    sums: dict[str, tuple[Any, int]] = {}
    for call in trace.calls:
        if _is(call, ADD) and len(call.args) == 2:
            count, number = call.args
            if isinstance(number, TensorProxy) and number.dtype == count.dtype:
                number = known.get(number.name)
            if _is_count(count, number) and count.name in inputs:
                sums[call.flat_outs[0].name] = count, number

    def rule(call: BoundSymbol, _: CallEditor) -> Replacement | None:
        args = sums.get(call.args[0].name) if _is(call, ITEM) else None
        if args is None:
            return None
        symbol = Symbol("tj", "number_of_sum")
        return Replacement((call.replace(symbol=symbol, args=args, body=None),))

    rules: RuleTable[Any] = RuleTable("inductor-sums")
    rules.set("*", rule)
    return context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)


def _constants(call: BoundSymbol) -> Iterator[tuple[Proxy, int]]:
    """The result of ``call`` and its value, if it copies a constant tensor that is an integer.

    Steps of lists add ``torch.tensor(1.0)``.
    """
    first, *others = (call.body.calls if call.body is not None else ()) or (call,)
    if others or first.symbol.qualname != COPY or call.flat_args:
        return
    x = first.args[0].value if isinstance(first.args[0], Constant) else None
    if isinstance(x, torch.Tensor) and not x.shape and x.is_floating_point():
        number = float(x.item())
        if number.is_integer():
            yield call.flat_outs[0], int(number)


def _is(call: BoundSymbol, name: str) -> bool:
    """Test for a call of the operator ``name``, or of one that calls it alone, with its arguments.

    A functional form names what it writes beside its arguments.
    """
    if call.symbol.qualname == name:
        return len(call.flat_outs) == 1 and (not call.kwargs or call.kwargs == (("alpha", 1),))
    body = call.body
    if body is None or len(body.calls) != 1 or not _is(inner := body.calls[0], name):
        return False
    made = inner.flat_outs[0].name
    if any(p.name != made for p in leaves(body.outputs) if isinstance(p, Proxy)):
        return False
    given = {p.name: arg for p, arg in zip(body.inputs, call.flat_args, strict=False)}
    args: tuple[Any, ...] = substituted(inner.args, given)
    return call.args == args


def _is_count(x: Any, number: Any = None, *_: Any) -> bool:
    return (
        isinstance(x, TensorProxy)
        and (x.shape, x.device.type, x.subclass, x.flags) == ((), "cpu", None, ())
        and x.dtype.name in ("float32", "float64")
        and type(number) is int
        and 0 < abs(number) <= MOST
    )
