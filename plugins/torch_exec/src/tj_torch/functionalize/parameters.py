"""Programs that write parameters in place and take no gradients, such as optimizer steps.

In functional form, each parameter and each of an optimizer's averages is a new tensor that is
copied back. On a CPU this takes three to ten times the time of the step, and twice the memory, and
no gradient needs that form. It is made where executors fuse calls and write new values in place.
Then it is made below autograd, so that no parameter has a node for its new value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import (
    Decline,
    TensorProxy,
    Trace,
    detached,
    makes_views,
    requires_grad,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tj_core.extend import BoundSymbol, Executor, Proxy

__all__ = ["with_parameters"]


def with_parameters(trace: Trace, executors: Sequence[Executor]) -> Trace | Decline:
    """``trace`` for functionalization: below autograd, if it takes no gradients.

    Declines for one that writes parameters, takes no gradients, and is not fused in place.
    """
    call = _first_write(trace)
    if call is None:
        return trace
    if _is_fused_in_place(trace, executors):
        return detached(trace)
    return Decline("it writes parameters, and takes no gradients", call.source)


def _first_write(trace: Trace) -> BoundSymbol | None:
    """The first call that writes a parameter; None if a value that is made requires a gradient."""
    parameters = {p.name for p in trace.inputs if requires_grad(p)}
    found: BoundSymbol | None = None
    for call in trace.calls:
        if any(map(requires_grad, _made(call))):
            return None
        if any(call.flat_args[i].name in parameters for i in call.effects.mutates):
            found = found or call
    return found


def _made(call: BoundSymbol) -> Iterator[Proxy]:
    """The outputs of ``call``, but for arguments that it returns and takes no gradients of."""
    given = {a.output for a in call.effects.aliases if a.kind == "arg" and a.identical}
    given = given if call.context.get("grad") is False else set()
    return (p for i, p in enumerate(call.flat_outs) if i not in given)


def _is_fused_in_place(trace: Trace, executors: Sequence[Executor]) -> bool:
    """Test for an executor that fuses the calls, and may overwrite all arguments that they write.

    One call is not fused. A call with gradients on may make a view that autograd lets be written.
    """
    calls = [call for call in trace.calls if call.effects.mutates or not makes_views(call)]
    writes = [call for call in calls if call.effects.mutates]
    given = {p.name: p for p in trace.inputs}
    written = [given.get(call.flat_args[i].name) for call in writes for i in call.effects.mutates]
    tensors = [p for p in written if isinstance(p, TensorProxy)]
    return (
        len(calls) > 1
        and all(call.context.get("grad") is False for call in trace.calls)
        # The gradient of a table has few rows: a new table would be made and copied.
        and all(p.layout == "strided" for p in trace.inputs if isinstance(p, TensorProxy))
        and any(_overwrites(executor, tensors) for executor in executors)
        and all(
            _overwrites(executor, tensors)
            for call in writes
            for inner in (call.body.calls if call.body is not None else ())
            if (executor := _taking(executors, inner)) is not None
        )
    )


def _overwrites(executor: Executor, tensors: Iterable[TensorProxy]) -> bool:
    fusion = executor.fusion
    if fusion is None or fusion.overwrites is None:
        return False
    return fusion.consumes and all(map(fusion.overwrites, tensors))


def _taking(executors: Iterable[Executor], call: BoundSymbol) -> Executor | None:
    """The first executor, no fallback, that fuses or claims ``call``; None if none does yet.

    A number that is known in each call only is made a tensor later.
    """
    found = (e for e in executors if not e.fallback and (e.fuses(call) or e.claimed(call)))
    return next(found, None)
