"""Pin calls that may raise for real tensors and not for fakes, so that they raise in order.

Rule table ``may_raise``, open to plugins, maps a symbol to a predicate of its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Expanded,
    NumberProxy,
    RuleTable,
    Symbol,
    TensorProxy,
    leaves,
)

from tj_torch.ops.facts.metadata_mutation import is_autograd_change

if TYPE_CHECKING:
    from tj_torch.ops.sizes.program import Sizes

__all__ = ["MAY_RAISE", "cannot_fail", "may_raise_at_run_time", "pinned", "rules"]

MAY_RAISE = "may_raise"
"""Name of the rule table."""

ASSERT_SCALAR = Symbol("aten", "_assert_scalar.default")

MayRaise = Callable[[BoundSymbol], bool]


def rules() -> RuleTable[MayRaise]:
    """Rules for `view`, which raises if the strides do not allow the new sizes, and for data types.

    Kernels of norms and losses refuse types of parameters that fake kernels take.
    """
    table: RuleTable[MayRaise] = RuleTable(MAY_RAISE, rule_type=Callable)
    for name in ("torch.Tensor.view", "torch.Tensor.view_as", "aten.view", "aten.view.default"):
        table.set(name, _is_refused_view)
    for name in ("batch_norm", "group_norm", "instance_norm", "layer_norm"):
        for place in ("torch", "torch.nn.functional"):
            table.set(f"{place}.{name}", _mixes_types)
        table.set(f"aten.{name}.default", _mixes_types)
    for name in ("cross_entropy", "nll_loss"):
        table.set(f"torch.nn.functional.{name}", _has_weights_of_other_type)
    return table


def may_raise_at_run_time(call: BoundSymbol, table: RuleTable[MayRaise]) -> bool:
    """Test for a call that may raise for real tensors though it does not for fakes."""
    if is_autograd_change(call):
        return True
    rule = table.get(call.symbol)
    return rule is not None and rule.value(call)


def cannot_fail(call: BoundSymbol, sizes: Sizes) -> bool:
    """Test for an assertion that the call which made its number guarantees.

    Dynamo adds such assertions, as that a size is not negative.
    """
    if call.symbol != ASSERT_SCALAR or not isinstance(call.args[0], NumberProxy):
        return False
    return sizes.certain(call.args[0].expr)


def pinned(facts: Expanded) -> Expanded:
    """``facts`` of a call that must neither move nor be decomposed."""
    return replace(facts, effects=replace(facts.effects, ordered=("side_effect",)), body=None)


def _mixes_types(call: BoundSymbol) -> bool:
    types = [p.dtype for p in call.flat_args if isinstance(p, TensorProxy)]
    low = any(types[0].name == name for name in ("bfloat16", "float16"))
    # An input in low precision may have parameters and statistics in float32.
    return {*types[1:]} not in (set(), {types[0]}) and not (
        low and all(t.name == "float32" for t in types[1:])
    )


def _has_weights_of_other_type(call: BoundSymbol) -> bool:
    weight = call.args[2] if len(call.args) > 2 else dict(call.kwargs).get("weight")
    given = next(p for p in call.flat_args if isinstance(p, TensorProxy))
    return isinstance(weight, TensorProxy) and weight.dtype != given.dtype


def _is_refused_view(call: BoundSymbol) -> bool:
    # An opaque object has no strides to ask for.
    if not isinstance(call.args[0], TensorProxy):
        return False
    viewed, *sizes = call.args
    size = [n for p in (*sizes, *(v for _, v in call.kwargs)) for n in _sizes(p)]
    if not all(isinstance(n, int) for n in (*viewed.shape, *viewed.strides, *size)):
        return False
    try:  # PyTorch's own kernel decides, on a meta tensor
        like: Any = torch.empty_strided(viewed.shape, viewed.strides, device="meta")
        like.view(size)
    except RuntimeError:
        return True
    return False


def _sizes(argument: Any) -> Sequence[Any]:
    return argument.shape if isinstance(argument, TensorProxy) else [*leaves(argument)]
