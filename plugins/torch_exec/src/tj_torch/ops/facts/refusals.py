"""Operators that may raise for values of their arguments, with checks for these, or never do.

Rules of the core's table ``refuses``: see `tj_core.passes.fuse.refusals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tj_core.extend import (
    REFUSES,
    BoundSymbol,
    Effects,
    NumberProxy,
    Refuses,
    RuleTable,
    Symbol,
    TensorProxy,
)

from tj_torch.ops.naming.resolve import resolve

__all__ = ["INDICES", "rules"]

CHECK = Symbol("tj", "check_index")
ALONE = Effects(ordered=("side_effect",))

INDICES = frozenset({"int64", "int32"})
"""Data types of index tensors."""

ALONG = {
    "gather": False, "index_add": False, "index_copy": False, "index_fill": True,
    "index_select": False, "scatter": False, "scatter_add": False,
}  # fmt: skip
"""Operators of ``(x, dim, index)``; true if a negative index counts from the end."""

WHOLE = frozenset({"bool", "int", "uint"})

DIVISIONS = frozenset({"div", "floor_divide", "fmod", "pow", "remainder"})
"""Pointwise operators that raise for some integers, such as a zero divisor."""

NEVER = frozenset({
    "_fused_rms_norm", "_log_softmax", "_native_batch_norm_legit_no_training",
    "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention_for_cpu", "_softmax",
    "_to_copy", "_unsafe_view", "addmm", "all", "amax", "amin", "any", "arange", "argmax", "argmin",
    "baddbmm", "bmm", "cat", "clone", "constant_pad_nd", "convolution", "copy", "cumsum",
    "diagonal_scatter", "empty_like", "fill", "flip", "full", "full_like", "linear",
    "masked_fill", "mean", "mm", "native_group_norm", "native_layer_norm", "new_empty", "new_full",
    "new_ones", "new_zeros", "ones", "ones_like", "prod", "repeat", "roll", "scalar_tensor",
    "select_scatter", "slice_scatter", "stack", "sum", "tril", "triu", "var", "var_mean", "zero",
    "zeros", "zeros_like",
})  # fmt: skip
"""Operators, beside pointwise ones, that accept all values."""


def rules() -> RuleTable[Refuses]:
    """Rules for PyTorch's operators in functional form, on the CPU."""
    table: RuleTable[Refuses] = RuleTable(REFUSES)
    table.set("aten.*", _refusals)
    return table


def _refusals(call: BoundSymbol) -> Sequence[BoundSymbol] | None:
    name = call.symbol.path.partition(".")[0]
    if name == "scalar_tensor" and _may_be_too_large(call):
        return None
    if name in NEVER or _is_pointwise(call, name):
        return ()
    if name in ALONG:
        x, dim, index = call.args[:3]
        return _checks([(index, _size(x, dim))], ALONG[name])
    if name == "embedding":
        weight, index = call.args[:2]
        return _checks([(index, _size(weight, 0))], False)
    if name in ("index", "index_put"):
        x, indices = call.args[:2]
        pairs = [(index, _size(x, dim)) for dim, index in enumerate(indices) if index is not None]
        return _checks(pairs, True)
    return None


def _may_be_too_large(call: BoundSymbol) -> bool:
    """Test for a float of each call in a data type that does not hold all floats."""
    unknown = any(isinstance(p, NumberProxy) and p.kind == "float" for p in call.flat_args)
    made = call.outputs
    return unknown and isinstance(made, TensorProxy) and made.dtype.name != "float64"


def _is_pointwise(call: BoundSymbol, name: str) -> bool:
    try:
        operator = resolve(call.symbol)
    except LookupError:
        return False
    tags = getattr(operator, "tags", ())
    tensors = [p for p in (*call.flat_args, *call.flat_outs) if isinstance(p, TensorProxy)]
    whole = all(p.dtype.kind in WHOLE for p in tensors)
    return torch.Tag.pointwise in tags and not (name in DIVISIONS and whole)


def _size(x: Any, dim: Any) -> int | None:
    """Size of ``x`` along ``dim`` if it is fixed, else None."""
    if not isinstance(x, TensorProxy) or not isinstance(dim, int):
        return None
    size = x.shape[dim] if x.shape else 1
    return size if isinstance(size, int) else None


def _checks(
    pairs: Sequence[tuple[Any, int | None]], negative: bool
) -> Sequence[BoundSymbol] | None:
    """Calls of ``tj.check_index`` for pairs of an index and the size of its dimension.

    None if a size is not fixed or an index is no integer tensor.
    """
    made = []
    for index, size in pairs:
        if size is None or not isinstance(index, TensorProxy) or index.dtype.name not in INDICES:
            return None
        args = (index, -size if negative else 0, size)
        made.append(BoundSymbol(CHECK, args, effects=ALONE))
    return made
