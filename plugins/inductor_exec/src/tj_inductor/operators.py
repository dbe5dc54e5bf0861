"""Calls that may be in a region, and calls that share a kernel with their neighbours."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Constant,
    Decline,
    NumberProxy,
    Proxy,
    Symbol,
    SymDim,
    TensorProxy,
    makes_views,
)
from tj_torch.extend import dtype_to_torch, is_on, resolve
from tj_torch.internal import overlaps_itself

from tj_inductor.adapter.features import TABLE
from tj_inductor.adapter.names import (
    FORMULAS,
    KERNELS,
    LOW,
    PLACES,
    REGIONS,
    SYMBOLS,
    VERSIONS,
)
from tj_inductor.bags import why_not_by_rows
from tj_inductor.formulas import REPLACED
from tj_inductor.joined.editing import ALONE
from tj_inductor.loops import is_in_loops
from tj_inductor.mixed import WITH_HALVES
from tj_inductor.moves import is_window
from tj_inductor.pools import why_not_padded
from tj_inductor.trials import FILLING, refusal

__all__ = ["can_fuse", "convolves", "is_kernel", "needs", "operator_of"]

DEVICES = frozenset({"cpu", "cuda"})

OTHERWISE = frozenset({
    "fractional_max_pool3d", "_embedding_bag", "_embedding_bag_forward_only", "max_unpool2d",
    "max_unpool3d", "multilabel_margin_loss_forward", "binary_cross_entropy", "nextafter",
    "erfinv", "replication_pad2d_backward", "replication_pad3d_backward", "upsample_linear1d",
    "grid_sampler_2d",
})  # fmt: skip
"""Operators whose results differ between Inductor's programs and PyTorch's kernels.

Fractional pooling makes other windows of equal random samples; embedding bags of bfloat16 return a
value whose metadata differ from those of fake tensors; unpooling takes negative indices; the margin
loss counts labels behind the -1 that ends them; cross entropy takes values that are no probability;
`nextafter` is that of float32, which is no neighbour in bfloat16; `erfinv` in float32 has errors of
9e-6 near 1, where PyTorch's library has 6e-8. The gradient of replicated padding is in
channels_last where its input is, and fake kernels, by which Inductor reads it, say otherwise.
Linear interpolation between `a` and `b` is `a + (b - a) * t`, which is NaN at `t = 0` for an
infinite `a`; PyTorch's kernel adds two products. Grid samples outside of the input are its border
times zero, which is NaN for an infinite border.
"""


def can_fuse(call: BoundSymbol) -> bool | Decline:
    """Decide if ``call`` is a pure call of an ATen operator on plain tensors."""
    if call.symbol.namespace != "aten":
        return Decline("fuses ATen operators")
    if ALONE in call.tags:
        return Decline("joined products read it, and PyTorch's kernel makes it")
    operator = operator_of(call.symbol)
    if operator is None:
        return Decline("PyTorch has no such operator")
    name = call.symbol.path.partition(".")[0]
    if name in OTHERWISE:
        return Decline("Inductor's programs compute it otherwise than PyTorch's kernels")
    if torch.Tag.dynamic_output_shape in operator.tags and not _picks_by_numbers(call):
        return Decline("the shape of its result depends on data")
    if is_on(call.context):
        return Decline("it runs under autocast")
    if any(isinstance(x, complex) for x in (*call.args, *dict(call.kwargs).values())):
        return Decline("no kernels for complex numbers")
    unread = _unread(call)
    values = (p for p in (*call.flat_args, *call.flat_outs) if p.name not in unread)
    reason = next(filter(None, map(_unfit, values)), None) or _lost(call)
    if reason is None and name in SOMETIMES:
        reason = SOMETIMES[name](call)
    if reason is None and not any(isinstance(p, TensorProxy) for p in call.flat_outs):
        reason = "it returns no tensor"
    reason = reason or refusal(call, operator)
    return True if reason is None else Decline(reason)


def _picks_by_numbers(call: BoundSymbol) -> bool:
    """Check for an index by integers, on the device of what it picks from.

    A mask picks as many elements as it has true ones.
    """
    tensors = [p for p in call.flat_args if isinstance(p, TensorProxy)]
    same = all(p.device == tensors[0].device for p in tensors)
    return call.symbol == INDEX and same and all(p.dtype.name in WHOLE for p in tensors[1:])


def _unread(call: BoundSymbol) -> Collection[str]:
    """The names of tensors that no kernel reads, and which may have no elements.

    These are the statistics of a batch norm in evaluation, on CPUs, which the operator of the
    gradient takes and ignores, and what the forward of an embedding bag left out.
    """
    if call.symbol == BATCH_NORM and not call.args[5]:
        return [p.name for p in call.outputs[1:]]
    if call.symbol == BATCH_NORM_BACKWARD and not call.args[7]:
        return [p.name for p in call.args[5:7] if isinstance(p, TensorProxy)]
    if call.symbol == BAG_BACKWARD:
        return [call.args[i].name for i in (3, 5)]
    return ()


def _refused(call: BoundSymbol) -> str | None:
    """The reason why Inductor has no right kernel for ``call``: none for bools, and where PyTorch's
    raises, a region would broadcast ``source``.
    """
    x, dim, _, source = call.args[:4]
    if x.dtype.name == "bool":
        return "Inductor adds bools as integers"
    shapes = [[n for i, n in enumerate(p.shape) if i != dim % len(p.shape)] for p in (x, source)]
    same = len(x.shape) == len(source.shape) and shapes[0] == shapes[1]
    return None if same else "its source has another shape than its first argument"


def _divides_otherwise(call: BoundSymbol) -> str | None:
    """The reason why Inductor's gradient of an average pool is wrong; None if it is right.

    With ``ceil_mode``, it divides by the elements of a whole window where one ends behind padding.
    """
    given = dict(call.kwargs)
    ceil_mode = given.get("ceil_mode", call.args[5] if len(call.args) > 5 else False)
    return "Inductor divides by whole windows with ceil_mode" if ceil_mode else None


def _symbolic(call: BoundSymbol) -> str | None:
    """The reason why Inductor has no program for ``call`` if its sizes are symbols.

    It compares their quotients, or unrolls a window of so many elements.
    """
    values = (*call.flat_args, *call.flat_outs)
    tensors = (p for p in values if isinstance(p, TensorProxy))
    return "Inductor lowers it for fixed sizes only" if any(map(_has_symbols, tensors)) else None


def _adds_multiples_of_truths(call: BoundSymbol) -> str | None:
    """The reason why Inductor's kernel of a sum of bools writes behind its result, or None.

    With a factor ``alpha``, it computes integers, and stores vectors of these as bools.
    """
    bools = isinstance(call.flat_outs[0], TensorProxy) and call.flat_outs[0].dtype.name == "bool"
    if not bools or dict(call.kwargs).get("alpha", 1) == 1:
        return None
    return "Inductor computes multiples of bools as integers"


def _writes_to_shared_memory(call: BoundSymbol) -> str | None:
    """The reason why Inductor's result of a write to a part is another one, or None.

    Where elements of the result share memory (a part of ``x.unfold(0, 2, 1)``), a write to one
    writes the others in eager (``clone_preserve_strides`` in ATen).
    """
    out = call.flat_outs[0]
    shares = isinstance(out, TensorProxy) and overlaps_itself(out)
    return "elements of its result share memory" if shares else None


def _promotes(call: BoundSymbol) -> str | None:
    """The reason why Inductor's result has another data type: that of the first argument."""
    first, out = call.args[0], call.flat_outs[0]
    tensors = isinstance(first, TensorProxy) and isinstance(out, TensorProxy)
    if tensors and first.dtype == out.dtype:  # type: ignore[attr-defined]
        return None
    return "Inductor's result has the data type of its first argument"


def _multiplies_by_no_number(call: BoundSymbol) -> str | None:
    """The reason why Inductor cannot write the factor ``value`` as an integer, or None."""
    out, value = call.flat_outs[0], dict(call.kwargs).get("value", 1)
    value = value.value if isinstance(value, Constant) else value
    whole = isinstance(out, TensorProxy) and not out.dtype.name.startswith(("float", "bfloat"))
    odd = isinstance(value, float) and not math.isfinite(value)
    return "Inductor writes its factor as an integer" if whole and odd else None


def _has_wide_exponents(call: BoundSymbol) -> str | None:
    """The reason why Inductor's kernel of ``call`` does not compile, or None.

    The exponents of a vector of float64 have twice the places that their type has.
    """
    x = call.args[0]
    wide = isinstance(x, TensorProxy) and x.dtype.name == "float64"
    return "Inductor's kernel for exponents of float64 does not compile" if wide else None


def _is_truth(call: BoundSymbol) -> str | None:
    """The reason why Inductor takes a symbol for a bool as the number that it is, or None."""
    given = (*call.args, *dict(call.kwargs).values())
    tensors = (p for p in (*call.flat_args, *call.flat_outs) if isinstance(p, TensorProxy))
    symbols = any(isinstance(value, NumberProxy) for value in given)
    if not symbols or all(p.dtype.name != "bool" for p in tensors):
        return None
    return "Inductor makes no bool of a number that is a symbol"


def _bounded_otherwise(call: BoundSymbol) -> str | None:
    """The reason why Inductor's bounds of ``call`` are others than those of PyTorch's kernel.

    From 2.15 on, a kernel of integers takes a bound that their type does not hold for the nearest
    one that it holds; before that it refuses. Inductor converts the bound, which wraps around.
    """
    (out,) = call.flat_outs
    if isinstance(out, TensorProxy) and "int" in out.dtype.kind and out.dtype.bits < 64:
        held = torch.iinfo(dtype_to_torch(out.dtype))
        for bound in (*call.args[1:], *dict(call.kwargs).values()):
            is_symbol = isinstance(bound, NumberProxy)
            if is_symbol or (isinstance(bound, int) and not held.min <= bound <= held.max):
                return "Inductor wraps around a bound that the data type does not hold"
    return _is_truth(call)


def _scatters(call: BoundSymbol) -> str | None:
    """The reason why ``call`` stays a kernel of PyTorch: Inductor's takes up to four times as long.

    It adds each gradient to its place in the layout of rows, and copies the result to
    channels_last, which it chooses between convolutions, too.
    """
    return "PyTorch's kernel is faster"


def _ignores_scales(call: BoundSymbol) -> str | None:
    """The reason why Inductor's nearest interpolation of symbolic sizes is another one, or None.

    Eager ignores the scale of a size that stays or doubles, which it may by factors below 3.
    """
    symbols = any(isinstance(p, TensorProxy) and _has_symbols(p) for p in call.flat_args)
    scales = (x for x in call.args[2:] if isinstance(x, float))
    if symbols and any(1 < scale < 3 and scale != 2 for scale in scales):
        return "PyTorch's kernel ignores the scales of sizes that stay or double"
    return None


def _sums_other_windows(call: BoundSymbol) -> str | None:
    """The reason why Inductor's gradient of nearest interpolation is another one, or None.

    It sums windows that follow from the sizes alone.
    """
    outs, sizes, *scales = call.args[1:]
    scales = [*scales, None, None][:2]
    if (reason := _symbolic(call)) or all(map(is_window, sizes[2:], outs, scales)):
        return reason
    return "Inductor ignores the scales in its gradient"


def _warns(call: BoundSymbol) -> str | None:
    """The reason why PyTorch's kernel of a variance warns in each run of ``call``, or None.

    It has no degree of freedom: no more elements than the correction. A symbol is two at least.
    """
    x, given = call.args[0], dict(call.kwargs)
    dims = call.args[1] if len(call.args) > 1 else given.get("dim")
    correction = given.get("correction", 1)
    correction = 1 if correction is None else correction
    if not isinstance(x, TensorProxy) or not isinstance(correction, int | float):
        return "its correction is known in each run only"
    # Without dimensions it takes place along 0 and -1, too: of one element.
    sizes = [x.shape[dim] for dim in dims] if dims and x.shape else x.shape
    least = math.prod(2 if isinstance(n, SymDim) else n for n in sizes)
    return "PyTorch's kernel warns of its degrees of freedom" if least <= correction else None


def _refuses_slopes(call: BoundSymbol) -> str | None:
    """The reason why PyTorch's kernel of a gradient by a result may raise, or None.

    A negative slope is none that a result tells. Inductor's kernel computes something.
    """
    slopes, by_result = SLOPES[call.symbol.path.partition(".")[0]]
    if call.args[by_result] is False:
        return None
    given = [call.args[i] for i in slopes]
    known = all(isinstance(n, int | float) and n >= 0 for n in given)
    return None if known else "PyTorch's kernel refuses negative slopes"


SLOPES: dict[str, tuple[tuple[int, ...], int]] = {
    "elu_backward": ((1,), 4),
    "leaky_relu_backward": ((2,), 3),
    "rrelu_with_noise_backward": ((3, 4), 6),
}
"""Gradients by a result: the places of slopes, and of the mark that it is the result."""

INDEX = Symbol.parse("aten.index.Tensor")
WHOLE = ("int64", "int32")
"""Data types of the numbers that pick elements: bools and uint8 are masks."""

BATCH_NORM = Symbol.parse("aten.native_batch_norm.default")
BATCH_NORM_BACKWARD = Symbol.parse("aten.native_batch_norm_backward.default")
BAG_BACKWARD = Symbol.parse("aten._embedding_bag_backward.default")

NEAREST = tuple(f"{k}{n}d_backward" for k in ("upsample_nearest", "_upsample_nearest_exact")
                for n in (1, 2, 3))  # fmt: skip
"""Gradients of nearest interpolation, sums over windows."""

COUNTS = frozenset({"arange", "cumsum", "tril_indices", "triu_indices"})
"""Operators that Inductor computes, or may compute, as expressions of a loop's variables."""

PARTS = ("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")
"""Operators that return a copy of their first argument with another part."""

SOMETIMES: Mapping[str, Callable[[BoundSymbol], str | None]] = {
    **dict.fromkeys(SLOPES, _refuses_slopes),
    "addcmul": _multiplies_by_no_number,
    "add": _adds_multiples_of_truths,
    "frexp": _has_wide_exponents,
    "index_add": _refused,
    "ldexp": _promotes,
    "avg_pool2d_backward": _divides_otherwise,
    "avg_pool3d_backward": _divides_otherwise,
    "_adaptive_avg_pool2d": _symbolic,
    "_embedding_bag_backward": why_not_by_rows,
    "adaptive_max_pool2d": _symbolic,
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), why_not_padded),
    "max_pool2d_with_indices_backward": _scatters,
    **dict.fromkeys(NEAREST, _symbolic),
    **dict.fromkeys(("upsample_nearest2d", "upsample_nearest3d"), _ignores_scales),
    "upsample_nearest2d_backward": _sums_other_windows,
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _warns),
    **dict.fromkeys(PARTS, _writes_to_shared_memory),
    **dict.fromkeys(FILLING, _is_truth),
    **dict.fromkeys(("clamp", "clamp_max", "clamp_min", "hardtanh"), _bounded_otherwise),
}
"""Operators of which some calls are in no region: functions that return the reason, or None."""


def _lost(call: BoundSymbol) -> str | None:
    """The feature that ``call`` needs and this PyTorch has lost, in words."""
    # Asked for every call of every program: with all features there is nothing to look up.
    if not TABLE.lost:
        return None
    found = next((feature for feature in needs(call) if feature in TABLE.lost), None)
    return None if found is None else f"this PyTorch lacks: {found}"


def needs(call: BoundSymbol) -> Iterator[str]:
    """The features without which no region takes ``call``."""
    yield REGIONS
    operator = operator_of(call.symbol)
    values = (*call.flat_args, *call.flat_outs)
    tensors = [p for p in values if isinstance(p, TensorProxy)]
    halves = any(p.dtype.name in ("bfloat16", "float16") for p in tensors)
    if operator in REPLACED or (halves and operator in WITH_HALVES):
        yield FORMULAS
    if not is_kernel(call):
        yield VERSIONS
    if len(tensors) < len(values) or any(_has_symbols(p) for p in tensors):
        yield SYMBOLS
    if halves:
        yield LOW
    if call.symbol.path.partition(".")[0] in COUNTS:
        yield PLACES
    if operator is not None and torch.Tag.pointwise not in operator.tags and not makes_views(call):
        read = [p.dtype.name for p in call.flat_args if isinstance(p, TensorProxy)]
        if "int64" in read or "int32" in read:
            yield KERNELS


def _has_symbols(p: TensorProxy) -> bool:
    return any(isinstance(n, SymDim) for n in (*p.shape, *p.strides))


def is_kernel(call: BoundSymbol) -> bool:
    """Check that ``call``, which may be in a region, shares a kernel with its neighbours."""
    operator = operator_of(call.symbol)
    return operator is not None and (makes_views(call) or is_in_loops(operator))


def convolves(calls: Sequence[BoundSymbol]) -> bool:
    """Check for a convolution among ``calls``, for which Inductor chooses the layout of values
    between.
    """
    names = {call.symbol.path.partition(".")[0] for call in calls}
    return not names.isdisjoint({"convolution", "convolution_backward"})


@functools.cache
def operator_of(symbol: Symbol) -> Any:
    """The operator overload of ``symbol``; None if it is not one."""
    try:
        found = resolve(symbol)
    except LookupError:
        return None
    # Other names resolve to Python functions, which have no schema and no tags.
    return found if isinstance(found, type(torch.ops.aten.add.Tensor)) else None


def _unfit(p: Proxy) -> str | None:
    """Reason why no region takes ``p``; None if one does."""
    if isinstance(p, NumberProxy):
        return _unfit_number(p)
    if not isinstance(p, TensorProxy):
        return f"{p.name} is no tensor"
    if p.subclass is not None or p.layout != "strided" or p.flags:
        return f"{p.name} is no plain tensor"
    if p.device.type not in DEVICES:
        return f"{p.name} is on {p.device}"
    if any(isinstance(n, SymDim) and n.hint is None for n in (*p.shape, *p.strides)):
        return f"the sizes of {p.name} depend on data"
    if 0 in p.shape:
        return f"{p.name} has no elements"
    return _unfit_type(p.dtype.name)


def _unfit_number(p: NumberProxy) -> str | None:
    if p.kind != "int" or not p.expr:
        return f"{p.name} is no size"
    return f"{p.name} depends on data" if p.hint is None else None


@functools.cache
def _unfit_type(name: str) -> str | None:
    fitting = ("float64", "float32", "bfloat16", "float16", "bool", "uint8", "int8", "int16",
               "int32", "int64")  # fmt: skip
    return None if name in fitting else f"no kernels for {name}"
