"""Make calls of a functional program from calls of the acquired one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Context,
    Effects,
    Expand,
    Proxy,
    RuleTable,
    Symbol,
    TensorProxy,
    bind_outputs,
    leaves,
    requires_grad,
)

from tj_torch.functionalize.objects import Unsuitable, reads_data
from tj_torch.ops.facts.metadata_mutation import is_autograd_change
from tj_torch.ops.facts.schema_effects import changes_unseen, only_raises

if TYPE_CHECKING:
    from tj_core.internal import ViewStep

__all__ = [
    "computed",
    "data",
    "detach",
    "maker",
    "may_be_saved",
    "on_behalf",
    "out_of_place",
    "output_place",
    "problem",
    "versioned",
]


def on_behalf(
    call: BoundSymbol, symbol: Symbol, args: Any, kwargs: Any, context: Context
) -> BoundSymbol:
    """New call that does part of the work of ``call``, still without outputs."""
    return BoundSymbol(
        symbol,
        args,
        kwargs,
        context=context,
        source=call.source,
        parent=call.label,
        tags=call.tags,
    )


def out_of_place(call: BoundSymbol) -> BoundSymbol:
    """Out-of-place view, such as ``x.t()``, for a call like ``x.t_()``.

    :raises Unsuitable: if PyTorch has no such method.
    """
    path = call.symbol.name.removesuffix("_")
    owner, _, name = path.rpartition(".")
    if owner != "Tensor" or not hasattr(torch.Tensor, name):
        raise Unsuitable(f"{call.symbol} changes metadata in a way that no view does")
    return call.replace(symbol=Symbol("torch", path), effects=Effects(), outputs=None, body=None)


def computed(call: BoundSymbol, out: TensorProxy) -> TensorProxy:
    """Value that the body of ``call`` computes for ``out``; its strides may differ."""
    if call.body is None:
        return out
    pairs = zip(leaves(call.outputs), leaves(call.body.outputs), strict=True)
    inner = next(formal for p, formal in pairs if p is out)
    return inner if isinstance(inner, TensorProxy) else out


def versioned(call: BoundSymbol, value: Proxy, count: int) -> BoundSymbol:
    """``call`` with ``versions`` for ``value`` to have version ``count`` afterwards."""
    kwargs = dict(call.kwargs)
    place = call.flat_outs.index(value)
    versions = [0] * len(kwargs["mutated"])
    versions[place] = max(count - 1, 0)  # 0 also for an uncounted write
    before = kwargs.get("versions", versions)
    merged = tuple(map(max, before, versions))
    return call.replace(kwargs=tuple({**kwargs, "versions": merged}.items()))


def output_place(step: ViewStep) -> int:
    """Position of the view that ``step`` makes among the tensors its call returns."""
    tensors = [i for i, p in enumerate(step.call.flat_outs) if isinstance(p, TensorProxy)]
    return tensors.index(step.output)


def data(call: BoundSymbol, expand: RuleTable[Expand]) -> BoundSymbol:
    """Capture of ``x.data`` in any form, as ``getattr(x, "data")``."""
    return _instead(call, Symbol("builtins", "getattr"), (call.args[0], "data"), expand)


def detach(call: BoundSymbol, expand: RuleTable[Expand]) -> BoundSymbol:
    """``call`` on a tensor replaced by ``torch.detach``: a view that cuts gradients."""
    return _instead(call, Symbol("torch", "detach"), call.args[:1], expand)


def _instead(
    call: BoundSymbol, symbol: Symbol, args: tuple[Any, ...], expand: RuleTable[Expand]
) -> BoundSymbol:
    bare = call.replace(symbol=symbol, args=args, effects=Effects(), outputs=None)
    facts = expand.require(bare).value(bare)
    return bind_outputs(bare, facts, lambda i: call.flat_outs[i].name)


def maker(calls: Sequence[BoundSymbol], value: Proxy) -> int:
    """Position of the call that makes ``value``."""
    (place,) = [i for i, call in enumerate(calls) if value in call.flat_outs]
    return place


def may_be_saved(value: Proxy, calls: Iterable[BoundSymbol]) -> bool:
    """Test if a differentiated call among ``calls`` takes ``value`` and is not just a view."""
    return any(
        any(map(requires_grad, call.flat_outs))
        and any(p.name == value.name for p in call.flat_args)
        # A view saves sizes, not its argument.
        and not any(a.kind == "arg" for a in call.effects.aliases)
        for call in calls
    )


def problem(call: BoundSymbol) -> str | None:
    """Reason why ``call`` cannot be in a functional program, None if it can."""
    effects = call.effects
    if reads_data(call):
        return None
    if call.subprograms and (effects.mutates or effects.rebinds or effects.aliases):
        return f"{call.symbol} writes, or returns what it is given, inside of its functions"
    if effects.mutates and call.symbol.path.rpartition(".")[2].startswith("_fused_"):
        # `torch._fused_adamw_` bumps no version counter, and its functional form copies all lists.
        return f"{call.symbol} writes in place, and version counters do not show it"
    if changes_unseen(call) and not is_autograd_change(call):
        return f"{call.symbol} changes its argument, and does not say how"
    known = is_autograd_change(call) or only_raises(call)
    opaque = call.body is None and not known
    if "side_effect" in effects.ordered and opaque and call.flat_args:
        return f"what {call.symbol} does is not known"
    if call.context.get("inference"):
        return "it runs in inference mode"
    return None
