"""Operations that read or write by index, scans, and sorts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tj_core.extend import Dim, SymDim

from tj_nvfuser.definition import Value
from tj_nvfuser.operations.call import Call, Operation, Operations, Translate, axis_of
from tj_nvfuser.operations.parts import sliced
from tj_nvfuser.refusal import refuse

__all__ = ["OPERATIONS"]


def index_select(call: Call, x: Value, dim: int, index: Value) -> Value:
    refuse(index.ndim != 1, "an index that is no list")
    return rows(call, x, index, axis_of(dim, x.ndim))


def rows(call: Call, x: Value, index: Value, dim: int) -> Value:
    """Select the elements of ``x`` at a vector of indices along ``dim``."""
    shape = [*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]]
    return call.d.op("index_select", (x.dtype, shape), x, index, dim=dim)


def embedding(
    call: Call, weight: Value, index: Value, _: Any = -1, scaled: bool = False, sparse: bool = False
) -> Value:
    # The padding index, left out, changes the gradient alone.
    refuse(scaled or sparse, "gradients of another form")
    if not index.ndim:
        return call.d.squeeze(rows(call, weight, call.d.broadcast(index, (1,)), 0), [0])
    if index.ndim == 1:
        return rows(call, weight, index, 0)
    found = rows(call, weight, call.d.reshape(index, (flat(index.shape),)), 0)
    return call.d.reshape(found, call.out.shape)


def flat(shape: Sequence[Dim]) -> Dim:
    """Number of elements of ``shape``."""
    number: Dim = 1
    for n in shape:
        if isinstance(number, int) and isinstance(n, int):
            number *= n
        else:
            hints = [v if isinstance(v, int) else v.hint or 0 for v in (number, n)]
            number = SymDim(f"({number})*({n})", hints[0] * hints[1])
    return number


def index(call: Call, x: Value, indices: Sequence[Any]) -> Value:
    """Index by one vector of integers along one dimension."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    refuse(len(given) != 1, "several indices")
    dim, chosen = given[0]
    refuse(chosen.dtype == "Bool" or chosen.ndim != 1, "an index that is no list of integers")
    size = call.d.size(x.shape[dim])
    shape, dtype = chosen.shape, chosen.dtype
    # Brackets count negative indices from the end; `index_select` takes none.
    below = call.each("lt", shape, chosen, 0, compute=dtype, result="Bool")
    wrapped = call.each("add", shape, chosen, size, compute=dtype)
    return rows(call, x, call.d.op("where", (dtype, shape), below, wrapped, chosen), dim)


def gather(call: Call, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """Gather by ``take_along_axis``: the result of nvFuser's own ``gather`` cannot be indexed in
    turn.
    """
    refuse(sparse_grad, "a sparse gradient")
    dim = axis_of(dim, x.ndim)
    # PyTorch's index may be smaller than the tensor, `take_along_axis` wants equal sizes.
    for d, n in enumerate(index.shape):
        if d != dim:
            x = sliced(call.d, x, d, 0, call.d.size(n), n)
    return call.d.op("take_along_axis", (x.dtype, index.shape), x, index, dim=dim)


def scatter(call: Call, x: Value, dim: int, index: Value, source: Any) -> Value:
    """Define a scatter along the last dimension, after a permutation.

    nvFuser 0.2.36 stops where another is scattered along (`greedy.cpp`), and the index is as large
    as the tensor in all others; if these are several, at the last, too (`allocation.cpp`, or
    `greedy.cpp` again if they are merged); and where sizes are symbols, of a tensor that is filled
    with a number (`internal_base_nodes.cpp`).
    """
    refuse(not isinstance(source, Value), "a number")
    refuse(source.shape != index.shape, "a source that is larger than its index")
    sizes = (*x.shape, *index.shape)
    refuse(not all(isinstance(n, int) for n in sizes), "sizes of a scatter that are symbols")
    dim = axis_of(dim, x.ndim)
    others = [d for d in range(x.ndim) if d != dim]
    equal = all(x.shape[d] == index.shape[d] for d in others)
    refuse(len(others) > 1 and equal, "a scatter with several other dimensions of equal sizes")
    order = [*others, dim]
    given = (x, index, call.d.cast(source, x.dtype))
    x, index, source = (call.d.permute(v, order) for v in given)
    found = call.d.op("scatter", (x.dtype, x.shape), x, index, source, dim=x.ndim - 1)
    return call.d.permute(found, [order.index(d) for d in range(x.ndim)])


def scan(name: str) -> Translate:
    def translate(call: Call, x: Value, dim: int, **_: Any) -> Value:
        x = call.d.cast(x, call.compute)
        ones = call.d.full(x.shape, 1, x.dtype)  # nvFuser scans nothing that is only spread
        x = call.each("mul", x.shape, x, ones, compute=x.dtype)
        return apart(call, call.d.op(name, (x.dtype, x.shape), x, dim=axis_of(dim, x.ndim)))

    return translate


def apart(call: Call, x: Value) -> Value:
    """Begin a segment with ``x``.

    nvFuser 0.2.36 fails, in `expr_sort.cpp`, where one kernel computes on the result of a scan or
    sort and also on its input.
    """
    return call.d.op("segment_set", (x.dtype, x.shape), x)


def topk(
    call: Call, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Value]:
    refuse(x.dtype == "Bool", "an order of booleans")
    refuse(type(k) is not int, "an unknown number of elements")
    x, dim = call.wide(x), axis_of(dim, x.ndim)
    shape = [*x.shape[:dim], k, *x.shape[dim + 1 :]]
    how = {"dim": dim, "largest": largest, "sorted": sorted}
    return call.d.ops("topk", [(x.dtype, shape), ("Int", shape)], x, call.d.constant(k), **how)


def argsort(call: Call, x: Value, dim: int = -1, descending: bool = False) -> Value:
    return stable_argsort(call, x, dim=dim, descending=descending)


def stable_argsort(
    call: Call, x: Value, *, stable: bool = False, dim: int = -1, descending: bool = False
) -> Value:
    refuse(x.dtype == "Bool", "an order of booleans")
    x = call.wide(x)
    how = {"dim": axis_of(dim, x.ndim), "descending": descending, "stable": stable}
    return apart(call, call.d.op("argsort", ("Int", x.shape), x, **how))


def sort(call: Call, x: Value, dim: int = -1, descending: bool = False) -> list[Value]:
    return stable_sort(call, x, stable=False, dim=dim, descending=descending)


def stable_sort(
    call: Call, x: Value, *, stable: Any = False, dim: int = -1, descending: bool = False
) -> list[Value]:
    order = stable_argsort(call, x, stable=bool(stable), dim=dim, descending=descending)
    how = {"dim": axis_of(dim, x.ndim)}
    return [call.d.op("take_along_axis", (x.dtype, x.shape), x, order, **how), order]


alone = functools.partial(Operation, joins=False, option="scans")


OPERATIONS: Operations = {
    "aten.index_select.default": Operation(index_select, option="indices"),
    "aten.embedding.default": Operation(embedding, option="indices"),
    "aten.index.Tensor": Operation(index, option="indices"),
    "aten.gather.default": Operation(gather, option="indices"),
    "aten.scatter.src": alone(scatter),
    "aten.cumsum.default": alone(scan("cumsum")),
    "aten.cumprod.default": alone(scan("cumprod")),
    "aten.topk.default": alone(topk),
    "aten.argsort.default": alone(argsort),
    "aten.argsort.stable": alone(stable_argsort),
    "aten.sort.default": alone(sort),
    "aten.sort.stable": alone(stable_sort),
}
"""Operations by index, by the names of their symbols."""
