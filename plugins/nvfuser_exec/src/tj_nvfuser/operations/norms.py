"""Normalizations, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tj_nvfuser.operations.call import Call, Operation, Operations
from tj_nvfuser.operations.reductions import count, reduced
from tj_nvfuser.refusal import refuse

if TYPE_CHECKING:
    from tj_core.extend import Dim

    from tj_nvfuser.definition import Value

__all__ = ["OPERATIONS"]


class Rows:
    """Elementwise operations and means of tensors of ``shape``; a row extends along ``dims``."""

    def __init__(self, call: Call, shape: Sequence[Dim], dims: Sequence[int], compute: str) -> None:
        self.call, self.shape, self.dims, self.compute = call, tuple(shape), list(dims), compute

    def of(self, name: str, *args: Any) -> Value:
        """Elementwise operation on values of the full shape."""
        return self.call.each(name, self.shape, *args, compute=self.compute)

    def small(self, name: str, *args: Any) -> Value:
        """Elementwise operation on per-row statistics."""
        shape = [1 if d in self.dims else n for d, n in enumerate(self.shape)]
        return self.call.each(name, shape, *args, compute=self.compute)

    def sum(self, x: Value) -> Value:
        """Sum of each row."""
        return reduced(self.call, "sum", x, self.dims, True)

    def mean(self, x: Value) -> Value:
        """Mean of each row."""
        return self.small("div", self.sum(x), count(self.call, x, self.dims))

    def centred(self, x: Value) -> tuple[Value, Value, Value]:
        """``x`` minus its mean, the mean, and the biased variance, per row."""
        average = self.mean(x)
        apart = self.of("sub", x, average)
        return apart, average, self.mean(self.of("mul", apart, apart))

    def rstd(self, variance: Value, eps: float) -> Value:
        """``1 / sqrt(variance + eps)``."""
        return self.small("rsqrt", self.small("add", variance, eps))


def normalized_rows(call: Call, x: Value, normalized: Sequence[Any]) -> Rows:
    """Rows of a layer norm over the last dimensions, whose sizes are ``normalized``."""
    dims = range(x.ndim - len(normalized), x.ndim)
    refuse(not dims, "a norm along no dimension")
    return Rows(call, x.shape, dims, call.wide(x).dtype)


def affine(rows: Rows, x: Value, weight: Any, bias: Any) -> Value:
    """``x * weight + bias``, each if it is given."""
    if weight is not None:
        x = rows.of("mul", x, weight)
    return x if bias is None else rows.of("add", x, bias)


def layer_norm(
    call: Call, x: Value, normalized: Any, weight: Any, bias: Any, eps: float
) -> tuple[Value, Value, Value]:
    rows = normalized_rows(call, x, normalized)
    apart, average, variance = rows.centred(call.wide(x))
    rstd = rows.rstd(variance, eps)
    return affine(rows, rows.of("mul", apart, rstd), weight, bias), average, rstd


def layer_norm_backward(
    call: Call,
    g: Value,
    x: Value,
    normalized: Any,
    mean: Value,
    rstd: Value,
    weight: Any,
    bias: Any,
    mask: Sequence[bool],
) -> list[Any]:
    rows = normalized_rows(call, x, normalized)
    g, x = call.wide(g), call.wide(x)
    unit = rows.of("mul", rows.of("sub", x, mean), rstd)
    outer = [d for d in range(x.ndim) if d not in rows.dims]
    return [
        input_gradient(rows, g, unit, rstd, weight) if mask[0] else None,
        reduced(call, "sum", rows.of("mul", g, unit), outer) if mask[1] else None,
        reduced(call, "sum", g, outer) if mask[2] else None,
    ]


def input_gradient(rows: Rows, g: Value, unit: Value, rstd: Value, weight: Any) -> Value:
    """Gradient of a norm's input: ``rstd (g w - mean(g w) - unit mean(g w unit))``.

    ``unit`` is the normalized input, ``w`` the weight; means are per row.
    """
    if weight is not None:
        g = rows.of("mul", g, weight)
    along = rows.of("mul", unit, rows.mean(rows.of("mul", g, unit)))
    return rows.of("mul", rows.of("sub", rows.of("sub", g, rows.mean(g)), along), rstd)


def rms_norm(call: Call, x: Value, normalized: Any, weight: Any, eps: Any) -> tuple[Value, Value]:
    rows = normalized_rows(call, x, normalized)
    if eps is None:
        # PyTorch's default: the machine epsilon of the type that it computes in.
        eps = 2.0**-52 if rows.compute == "Double" else 2.0**-23
    wide = call.wide(x)
    rstd = rows.rstd(rows.mean(rows.of("mul", wide, wide)), eps)
    return affine(rows, rows.of("mul", wide, rstd), weight, None), rstd


def rms_norm_backward(
    call: Call, g: Value, x: Value, normalized: Any, rstd: Value, weight: Any, mask: Sequence[bool]
) -> list[Any]:
    rows = normalized_rows(call, x, normalized)
    g = call.wide(g)
    unit = rows.of("mul", x, rstd)
    outer = [d for d in range(x.ndim) if d not in rows.dims]
    scaled = g if weight is None else rows.of("mul", g, weight)
    along = rows.of("mul", unit, rows.mean(rows.of("mul", scaled, unit)))
    return [
        rows.of("mul", rows.of("sub", scaled, along), rstd) if mask[0] else None,
        reduced(call, "sum", rows.of("mul", g, unit), outer) if mask[1] else None,
    ]


def group_norm(
    call: Call,
    x: Value,
    weight: Any,
    bias: Any,
    n: Any,
    channels: Any,
    inside: Any,
    groups: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    sizes = call.d.shape(x.shape)
    # Channels are split and merged again, in which nvFuser fails with symbols.
    refuse(not all(isinstance(s, int) for s in sizes), "groups of unknown sizes")
    members = math.prod(x.shape[1:]) // groups  # type: ignore[arg-type]
    split = (x.shape[0], groups, members)
    rows = Rows(call, split, [2], call.wide(x).dtype)
    apart, average, variance = rows.centred(call.d.reshape(call.wide(x), split))
    rstd = rows.rstd(variance, eps)
    whole = call.d.reshape(rows.of("mul", apart, rstd), x.shape)
    every = Rows(call, x.shape, [], rows.compute)
    spread = [None if v is None else call.d.broadcast(v, x.shape, [1]) for v in (weight, bias)]
    y = affine(every, whole, *spread)
    return y, call.d.squeeze(average, [2]), call.d.squeeze(rstd, [2])


def batch_norm(
    call: Call,
    x: Value,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Any]:
    """Batch norm; the updated running statistics are results, if there are any."""
    rows, found, unbiased = channel_rows(call, x), None, None
    running: list[Any] = [None if v is None else channel_shaped(rows, v) for v in (mean, variance)]
    wide = call.wide(x)
    if training:
        apart, average, spread = rows.centred(wide)
        rstd = rows.rstd(spread, eps)
        found = [average, rstd]
        # PyTorch divides by the biased variance, and blends the unbiased one into the running one.
        unbiased = unbiased_variance(rows, wide, spread) if running[1] is not None else None
    else:
        refuse(None in running, "statistics that there are none of")
        average, rstd = running[0], rows.rstd(call.wide(running[1]), eps)
        apart = rows.of("sub", wide, average)
        # On CUDA the operator returns these two in evaluation, on the CPU nothing.
        found = [average, rstd] if call.outputs[1].shape != (0,) else None
    w, b = (None if v is None else channel_shaped(rows, v) for v in (weight, bias))
    y = affine(rows, rows.of("mul", apart, rstd), w, b)
    saved = [channels(call, v) for v in found] if found else [None, None]
    moved = [
        old if not training or old is None else blended(rows, old, new, momentum)
        for old, new in zip(running, (average, unbiased), strict=True)
    ]
    return [y, *saved, *(None if v is None else channels(call, v) for v in moved)]


def channel_rows(call: Call, x: Value) -> Rows:
    """Rows of a batch norm: one channel each."""
    refuse(x.ndim < 2, "a batch without channels")
    return Rows(call, x.shape, [d for d in range(x.ndim) if d != 1], call.wide(x).dtype)


def channel_shaped(rows: Rows, v: Value) -> Value:
    """A vector of channels, in the shape of per-row statistics."""
    shape = [1 if d in rows.dims else n for d, n in enumerate(rows.shape)]
    return rows.call.d.broadcast(v, shape, [1])


def channels(call: Call, v: Value) -> Value:
    """Per-row statistics as a vector of channels."""
    return call.d.squeeze(v, [d for d in range(v.ndim) if d != 1])


def unbiased_variance(rows: Rows, x: Value, biased: Value) -> Value:
    """``biased * n / (n - 1)`` for rows of ``n`` elements."""
    number = count(rows.call, x, rows.dims)
    refuse(not isinstance(number, int) or number < 2, "a batch of unknown size")
    return rows.small("mul", biased, number / (number - 1))


def blended(rows: Rows, old: Value, new: Any, momentum: float) -> Value:
    """``(1 - momentum) old + momentum new``."""
    return rows.small("add", rows.small("mul", old, 1 - momentum), rows.small("mul", new, momentum))


def legit_batch_norm(call: Call, x: Value, weight: Any, bias: Any, *rest: Any) -> list[Any]:
    return batch_norm(call, x, weight, bias, *rest)


def legit_no_statistics(
    call: Call, x: Value, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> list[Any]:
    # The operator has no updated statistics among its results.
    return batch_norm(call, x, weight, bias, None, None, training, momentum, eps)[:3]


def batch_norm_backward(
    call: Call,
    g: Value,
    x: Value,
    weight: Any,
    mean: Any,
    variance: Any,
    saved: Any,
    rstd: Any,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> list[Any]:
    rows = channel_rows(call, x)
    g, x = call.wide(g), call.wide(x)
    w = None if weight is None else channel_shaped(rows, weight)
    if training:
        average, scale = channel_shaped(rows, saved), channel_shaped(rows, rstd)
    else:
        average = channel_shaped(rows, mean)
        scale = rows.rstd(call.wide(channel_shaped(rows, variance)), eps)
    unit = rows.of("mul", rows.of("sub", x, average), scale)
    if training:
        passed = input_gradient(rows, g, unit, scale, w) if mask[0] else None
    else:
        scaled = g if w is None else rows.of("mul", g, w)
        passed = rows.of("mul", scaled, scale) if mask[0] else None
    return [
        passed,
        channels(call, rows.sum(rows.of("mul", g, unit))) if mask[1] else None,
        channels(call, rows.sum(g)) if mask[2] else None,
    ]


OPERATIONS: Operations = {
    "aten.native_layer_norm.default": Operation(layer_norm),
    "aten.native_layer_norm_backward.default": Operation(layer_norm_backward),
    "aten._fused_rms_norm.default": Operation(rms_norm),
    "aten._fused_rms_norm_backward.default": Operation(rms_norm_backward),
    "aten.native_group_norm.default": Operation(group_norm),
    "aten._native_batch_norm_legit_functional.default": Operation(legit_batch_norm),
    "aten._native_batch_norm_legit.no_stats": Operation(legit_no_statistics),
    "aten.native_batch_norm_backward.default": Operation(batch_norm_backward),
}
"""Norms, by the names of their symbols."""
