"""The transform: gradients of a model in ``DistributedDataParallel`` come bucket by bucket.

A compiled program is one node of PyTorch's autograd, whose gradients all come at its end: nothing
would be computed while a bucket is reduced. So parameters get the tag `GRADIENT_GROUP`, whose value
is the number of their bucket; tj-autograd cuts the backward where a bucket is complete.

Such a program is compiled in the forward of the wrapper. One that was compiled before, when a
process group was there, is compiled again by its first call in a wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    PassRecord,
    Stage,
    Symbol,
    TagSet,
    TensorProxy,
    TraceEditor,
    Transform,
    requires_grad,
)
from tj_torch.extend import TorchDialects, arrivals, compiling
from torch import distributed

from tj_distributed.buckets import Buckets, active

if TYPE_CHECKING:
    from tj_core.extend import Outcome, PassContext, Trace

__all__ = ["GROUP", "overlap"]

GROUP = "GRADIENT_GROUP"
"""Name of tj-autograd's tag."""

STATIC = "STATIC_MEMORY_LOCATION"


def overlap() -> Transform:
    """Make the transform. Checkpointed regions and casts are in the program before it."""
    return Transform("overlap", _apply, Stage.ACQUIRED, priority=-10, reads=frozenset({STATIC}))


def _apply(trace: Trace, context: PassContext) -> Trace | Outcome:
    parameters = _parameters(trace)
    if len(parameters) < 2 or Stage.JOINT not in context.produced or _is_grouped(trace):
        return trace
    buckets = active()
    if buckets is not None:
        return _grouped(trace, context, parameters, buckets)
    if not distributed.is_initialized():
        return trace
    return context.wrap(trace, _branching(trace, context, parameters))


def _branching(
    trace: Trace, context: PassContext, parameters: Sequence[TensorProxy]
) -> Callable[..., Any]:
    """Wrapper of a program that is compiled again where a wrapper calls it."""
    # The rule of any of PyTorch's symbols: one object expands them all.
    dialects = context.expand.require(BoundSymbol(Symbol("torch", "add"))).value
    assert isinstance(dialects, TorchDialects)
    sizes = dialects.sizes

    def wrap(outside: Callable[..., Any], recompiler: Any) -> Callable[..., Any]:
        known: dict[Buckets | None, Callable[..., Any]] = {None: outside}

        def make(buckets: Buckets) -> Callable[..., Any]:
            if len(set(buckets.groups(parameters))) < 2:
                return outside
            with compiling(), dialects.among(sizes):
                made = recompiler.compiled(trace)
            recompiler.show(f"bucketed_{len(known)}", made)
            function: Callable[..., Any] = made.function
            return function

        def run(*args: Any) -> Any:
            buckets = active()
            found = known.get(buckets)
            if found is None:
                assert buckets is not None
                found = known[buckets] = make(buckets)
            return found(*args)

        return run

    return wrap


def _is_grouped(trace: Trace) -> bool:
    return any(GROUP in p.tags for p in trace.inputs)


def _parameters(trace: Trace) -> list[TensorProxy]:
    """Parameters whose gradients the program may compute, in the order in which these arrive."""
    if trace.context.get("grad") is False or trace.context.get("inference"):
        return []
    found = {p.name: p for p in trace.inputs if isinstance(p, TensorProxy) and _is_parameter(p)}
    return [found[name] for name in arrivals(trace) if name in found]


def _is_parameter(p: TensorProxy) -> bool:
    return requires_grad(p) and STATIC in p.tags


def _grouped(
    trace: Trace, context: PassContext, parameters: Sequence[TensorProxy], buckets: Buckets
) -> Trace:
    groups = buckets.groups(parameters)
    if len(set(groups)) < 2:
        return trace
    editor = TraceEditor(trace, context.tags)
    for p, group in zip(parameters, groups, strict=True):
        editor.inherit(p, TagSet({GROUP: group}))
    editor.append(*trace.calls)
    return editor.done(PassRecord(context.name, context.plugin))
