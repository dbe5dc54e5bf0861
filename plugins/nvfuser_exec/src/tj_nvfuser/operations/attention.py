"""Attention, with option ``sdpa``: nvFuser calls PyTorch's flash attention."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tj_nvfuser.definition import Value, same_shape
from tj_nvfuser.operations.call import Call, Operation, Operations
from tj_nvfuser.refusal import refuse

__all__ = ["OPERATIONS"]

LOW = ("Half", "BFloat16")


def fits(query: Value, key: Value, value: Value, dropout: Any) -> None:
    """Check that nvFuser defines attention of these arguments.

    :raises Refused: if not.
    """
    # PyTorch's flash attention has kernels for these alone.
    refuse(query.dtype not in LOW, "attention of values with more than 16 bits")
    refuse(dropout != 0, "attention with dropout")
    outer = query.shape[:2]
    refuse(
        not all(same_shape(x.shape[:2], outer) for x in (key, value)),
        "attention with other numbers of heads for keys and values",
    )


def forward(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    dropout: Any = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: Any = None,
) -> list[Value | None]:
    fits(query, key, value, dropout)
    refuse(debug, "a mask for debugging")
    batch, heads, length, _ = query.shape
    metas = [
        (query.dtype, (batch, heads, length, value.shape[3])),
        ("Float", (batch, heads, length)),
        ("UInt64", (2,)),  # state of random numbers, unsigned on CUDA
        ("UInt64", ()),
    ]
    how = settings(causal, scale)
    out, sums, seed, offset = call.d.ops("sdpfa_fwd", metas, query, key, value, **how)
    # None: what is for sequences of several lengths, and the mask for debugging.
    return [out, sums, None, None, None, None, seed, offset, None]


def backward(
    call: Call,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    sums: Value,
    starts: Any,
    more_starts: Any,
    longest: Any,
    longest_key: Any,
    dropout: Any,
    causal: bool,
    seed: Value,
    offset: Value,
    *,
    scale: Any = None,
) -> Sequence[Value]:
    fits(query, key, value, dropout)
    refuse(starts is not None or more_starts is not None, "sequences of several lengths")
    values = grad, query, key, value, out, sums
    metas = [(x.dtype, x.shape) for x in (query, key, value)]
    how = settings(causal, scale) | {"philox_seed": seed, "philox_offset": offset}
    return call.d.ops("sdpfa_bwd", metas, *values, **how)


def settings(causal: bool, scale: Any) -> dict[str, Any]:
    """Keyword arguments of forward and backward."""
    return {"dropout_p": 0.0, "is_causal": causal, "scale": scale}


attention = functools.partial(Operation, joins=False, option="sdpa", dtypes=("uint64",))


OPERATIONS: Operations = {
    "aten._scaled_dot_product_flash_attention.default": attention(forward, makes=(0, 1, 6, 7)),
    "aten._scaled_dot_product_flash_attention_backward.default": attention(backward),
}
"""Attention, by the names of its symbols."""
