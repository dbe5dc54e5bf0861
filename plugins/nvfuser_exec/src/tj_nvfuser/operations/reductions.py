"""Sums and other reductions, softmax, and losses of class indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tj_nvfuser.operations.call import Call, Operation, Operations, Translate, axes_of
from tj_nvfuser.operations.pointwise import WHOLE, truth_of
from tj_nvfuser.refusal import refuse

if TYPE_CHECKING:
    from tj_core.extend import Dim

    from tj_nvfuser.definition import Value

__all__ = ["OPERATIONS", "count", "reduced"]


def reduced(call: Call, name: str, x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    """Append ``fd.ops.NAME`` of ``x`` along ``dims``, in the data type of ``x``."""
    # nvFuser reduces along one dimension at least; a number is its own sum and maximum.
    if not dims:
        return x
    wide = x.dtype == "Int32" and name in ("sum", "prod")  # as PyTorch, if not told otherwise
    meta = "Int" if wide else x.dtype, left(x, dims, keepdim)
    found = call.d.op(name, meta, x, dims=list(dims), keepdim=keepdim)
    return call.d.cast(found, x.dtype)


def left(x: Value, dims: Sequence[int], keepdim: bool) -> list[Dim]:
    """Shape of a reduction of ``x`` along ``dims``."""
    sizes = enumerate(x.shape)
    return [1 if d in dims else n for d, n in sizes if keepdim or d not in dims]


def count(call: Call, x: Value, dims: Sequence[int]) -> Any:
    """Number of elements that are reduced to one: an int, or the name of its computation."""
    number: Any = 1
    for dim in dims:
        number = call.d.times(number, call.d.size(x.shape[dim]))
    return number


def total(call: Call, x: Value, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    x = call.d.cast(x, call.compute)
    return reduced(call, "sum", x, axes_of(dim, x.ndim), keepdim)


def product(call: Call, x: Value, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    x = call.d.cast(x, call.compute)
    return reduced(call, "prod", x, axes_of(dim, x.ndim), keepdim)


def mean(call: Call, x: Value, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    x = call.d.cast(x, call.compute)
    dims = axes_of(dim, x.ndim)
    summed = reduced(call, "sum", x, dims, keepdim)
    return call.each("div", summed.shape, summed, count(call, x, dims), compute=summed.dtype)


def extreme(name: str) -> Translate:
    def translate(call: Call, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        dims = axes_of(dim, x.ndim)
        # nvFuser has no maximum or minimum of booleans.
        wide = call.d.cast(x, "Int") if x.dtype == "Bool" else call.wide(x)
        return call.d.cast(reduced(call, name, wide, dims, keepdim), x.dtype)

    return translate


def quantified(name: str) -> Translate:
    def translate(call: Call, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        # PyTorch then reduces none, and other reductions all; what is left is a cast.
        refuse(isinstance(dim, list | tuple) and not dim, "a reduction of no dimensions")
        # As maximum or minimum of 0 and 1, for which nvFuser has kernels.
        whole = call.d.cast(truth_of(call, x), "Int")
        return call.d.cast(reduced(call, name, whole, axes_of(dim, x.ndim), keepdim), "Bool")

    return translate


def moments(call: Call, x: Value, dim: Any, correction: Any, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean along ``dim``."""
    refuse(x.dtype in WHOLE, "moments of what is whole")
    degrees = 1 if correction is None else correction
    refuse(degrees != int(degrees), "a correction that is not whole")
    dims = axes_of(dim, x.ndim)
    refuse(not dims, "a tensor without dimensions")
    # Symbols count as 1: where the rest is not enough, their values would decide.
    x, number = call.wide(x), math.prod(n for d in dims if isinstance(n := x.shape[d], int))
    # PyTorch warns, and the result is NaN.
    refuse(number <= degrees, "too few values")
    meta = x.dtype, left(x, dims, keepdim)
    how = {"dims": dims, "correction": int(degrees), "keepdim": keepdim}
    variance, average = call.d.ops("var_mean", [meta, meta], x, **how)
    return variance, average


def variance(
    call: Call, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    return moments(call, x, dim, correction, keepdim)[0]


def variance_mean(
    call: Call, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return moments(call, x, dim, correction, keepdim)


def deviation(
    call: Call, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    found = variance(call, x, dim, correction=correction, keepdim=keepdim)
    return call.pointwise("sqrt", found)


def vector_norm(
    call: Call, x: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    refuse(ord != 2, "another norm than the square root of squares")
    refuse(x.dtype in WHOLE, "a norm of what is whole")
    x = call.d.cast(x, call.compute)
    squares = call.each("mul", x.shape, x, x, compute=x.dtype)
    return call.pointwise("sqrt", reduced(call, "sum", squares, axes_of(dim, x.ndim), keepdim))


def logsumexp(call: Call, x: Value, dim: Any, keepdim: bool = False) -> Value:
    refuse(x.dtype in WHOLE, "a logarithm of what is whole")
    x, dims = call.wide(x), axes_of(dim, x.ndim)
    # Less an infinite maximum, infinities would be NaN; PyTorch takes 0 for it, too.
    top = finite(call, reduced(call, "max", x, dims, True))
    apart = call.each("sub", x.shape, x, top, compute=x.dtype)
    powers = call.each("exp", x.shape, apart, compute=x.dtype)
    summed = reduced(call, "sum", powers, dims, True)
    result = call.each(
        "add", top.shape, call.each("log", top.shape, summed, compute=x.dtype), top, compute=x.dtype
    )
    return result if keepdim else call.d.squeeze(result, dims)


def finite(call: Call, top: Value) -> Value:
    """``top`` with 0 in place of infinities."""
    test = call.each("isinf", top.shape, top, compute=top.dtype, result="Bool")
    return call.d.op("where", (top.dtype, top.shape), test, 0.0, top)


# ------------------------------------------------------------------------------------ softmax


def shifted(call: Call, x: Value, dim: int) -> tuple[Value, Value, Value, list[int]]:
    """``x - max(x)``, its exponentials, their sums, and the dimensions."""
    dims = axes_of(dim, x.ndim)
    top = reduced(call, "max", x, dims, True)
    low = call.each("sub", x.shape, x, top, compute=x.dtype)
    powers = call.each("exp", x.shape, low, compute=x.dtype)
    return low, powers, reduced(call, "sum", powers, dims, True), dims


# ``half_to_float`` is left out: the result's data type says it, to which the caller casts.
def softmax(call: Call, x: Value, dim: int, _: bool = False) -> Value:
    x = call.d.cast(x, call.compute)
    _low, powers, summed, _dims = shifted(call, x, dim)
    return call.pointwise("div", powers, summed)


def safe_softmax(call: Call, x: Value, dim: int, dtype: Any = None) -> Value:
    """Softmax that returns zeros for a row of negative infinities."""
    x = call.d.cast(x, call.compute)
    dims = axes_of(dim, x.ndim)
    top = reduced(call, "max", x, dims, True)
    nothing = call.each("eq", top.shape, top, -math.inf, compute=x.dtype, result="Bool")
    whole = softmax(call, x, dim)
    hidden = call.d.broadcast(nothing, whole.shape)
    return call.d.op("where", (whole.dtype, whole.shape), hidden, 0.0, whole)


def log_softmax(call: Call, x: Value, dim: int, _: bool = False) -> Value:
    x = call.d.cast(x, call.compute)
    low, _powers, summed, _dims = shifted(call, x, dim)
    logs = call.each("log", summed.shape, summed, compute=x.dtype)
    return call.pointwise("sub", low, logs)


def softmax_backward(call: Call, g: Value, y: Value, dim: int, _: Any = None) -> Value:
    g, y = (call.wide(v) for v in (g, y))
    product = call.each("mul", y.shape, g, y, compute=y.dtype)
    summed = reduced(call, "sum", product, axes_of(dim, y.ndim), True)
    scaled = call.each("mul", y.shape, y, summed, compute=y.dtype)
    return call.each("sub", y.shape, product, scaled, compute=y.dtype)


def log_softmax_backward(call: Call, g: Value, y: Value, dim: int, _: Any = None) -> Value:
    g, y = (call.wide(v) for v in (g, y))
    summed = reduced(call, "sum", g, axes_of(dim, y.ndim), True)
    powers = call.each("exp", y.shape, y, compute=y.dtype)
    scaled = call.each("mul", y.shape, powers, summed, compute=y.dtype)
    return call.each("sub", y.shape, g, scaled, compute=y.dtype)


# ------------------------------------------------------------------------------------ classes


def hits(call: Call, x: Value, target: Value, ignored: int) -> Value:
    """Mask of the elements of ``x`` (rows, classes) whose class is the row's target, if not
    ignored.
    """
    numbers = call.d.broadcast(call.d.iota(x.shape[1]), x.shape, [1])
    wanted = call.d.broadcast(call.d.cast(target, "Int"), x.shape, [0])
    same = call.each("eq", x.shape, numbers, wanted, compute="Int", result="Bool")
    counted = call.each("ne", x.shape, wanted, ignored, compute="Int", result="Bool")
    return call.each("logical_and", x.shape, same, counted, compute="Bool")


def counted_rows(call: Call, target: Value, ignored: int) -> Value:
    """Number of targets that are not ignored, as a float."""
    wanted = call.each("ne", target.shape, target, ignored, compute="Int", result="Bool")
    return reduced(call, "sum", call.d.cast(wanted, call.compute), [0])


def nll_loss(
    call: Call, x: Value, target: Value, weight: Any, reduction: int, ignored: int
) -> tuple[Value, Value]:
    refuse(weight is not None, "classes with weights")
    refuse(x.ndim != 2, "a loss of one row")
    wide = call.wide(x)
    chosen = hits(call, wide, target, ignored)
    picked = call.d.op("where", (wide.dtype, wide.shape), chosen, wide, 0.0)
    losses = reduced(call, "sum", picked, [1])
    losses = call.each("neg", losses.shape, losses, compute=losses.dtype)
    if reduction == 0:
        # PyTorch's total weight is 0 where nothing is reduced.
        return losses, call.d.full((), 0.0, wide.dtype)
    number = counted_rows(call, target, ignored)
    loss = reduced(call, "sum", losses, [0])
    # 0, 1 and 2 are none, mean and sum, as in `torch.nn._reduction`.
    if reduction == 1:
        loss = call.each("div", (), loss, number, compute=loss.dtype)
    return loss, number


def nll_loss_backward(
    call: Call,
    g: Value,
    x: Value,
    target: Value,
    weight: Any,
    reduction: int,
    ignored: int,
    number: Value,
) -> Value:
    refuse(weight is not None, "classes with weights")
    refuse(x.ndim != 2, "a loss of one row")
    g = call.wide(g)
    if reduction == 1:
        g = call.each("div", g.shape, g, call.d.cast(number, g.dtype), compute=g.dtype)
    g = call.each("neg", g.shape, g, compute=g.dtype)
    spread = call.d.broadcast(g, x.shape, [0] if g.ndim else [])
    return call.d.op("where", (g.dtype, x.shape), hits(call, x, target, ignored), spread, 0.0)


OPERATIONS: Operations = {
    "aten.sum.default": Operation(total),
    "aten.sum.dim_IntList": Operation(total),
    "aten.prod.default": Operation(product),
    "aten.prod.dim_int": Operation(product),
    "aten.mean.default": Operation(mean),
    "aten.mean.dim": Operation(mean),
    "aten.amax.default": Operation(extreme("max")),
    "aten.amin.default": Operation(extreme("min")),
    "aten.max.default": Operation(extreme("max")),
    "aten.min.default": Operation(extreme("min")),
    **{
        f"aten.{name}.{kind}": Operation(quantified(by))
        for name, by in (("any", "max"), ("all", "min"))
        for kind in ("default", "dim", "dims")
    },
    "aten.var.correction": Operation(variance),
    "aten.var_mean.correction": Operation(variance_mean),
    "aten.std.correction": Operation(deviation),
    "aten.linalg_vector_norm.default": Operation(vector_norm),
    "aten.logsumexp.default": Operation(logsumexp),
    "aten._softmax.default": Operation(softmax),
    "aten._safe_softmax.default": Operation(safe_softmax),
    "aten._log_softmax.default": Operation(log_softmax),
    "aten._softmax_backward_data.default": Operation(softmax_backward),
    "aten._log_softmax_backward_data.default": Operation(log_softmax_backward),
    "aten.nll_loss_forward.default": Operation(nll_loss, option="indices"),
    "aten.nll_loss_backward.default": Operation(nll_loss_backward, option="indices"),
}
"""Reductions, by the names of their symbols."""
