"""Operations that place elements: views, concatenation, padding, triangles, factories."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tj_nvfuser.definition import Number, Value, dtype_of
from tj_nvfuser.operations.call import Call, Operation, Operations, axis_of
from tj_nvfuser.operations.parts import pick, sliced
from tj_nvfuser.refusal import refuse

if TYPE_CHECKING:
    from tj_core.extend import Dim

__all__ = ["OPERATIONS"]


def view(call: Call, x: Value, *_: Any, **__: Any) -> Value:
    return call.d.reshape(x, call.out.shape)


def permute(call: Call, x: Value, dims: Sequence[int]) -> Value:
    return call.d.permute(x, dims)


def transpose(call: Call, x: Value, a: int = 0, b: int = 1) -> Value:
    # The transpose of a vector is the vector.
    if x.ndim < 2:
        return x
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return call.d.permute(x, order)


def unsqueeze(call: Call, x: Value, dim: int) -> Value:
    return inserted(call, x, dim % (x.ndim + 1))


def inserted(call: Call, x: Value, dim: int) -> Value:
    """Insert a dimension of size 1."""
    marks = [d == dim for d in range(x.ndim + 1)]
    meta = x.dtype, (*x.shape[:dim], 1, *x.shape[dim:])
    return call.d.op("broadcast", meta, x, is_broadcast_dim=marks)


def squeeze(call: Call, x: Value, dims: Any = None) -> Value:
    every = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    wanted = [d % x.ndim for d in every] if x.ndim else []
    # PyTorch leaves dimensions of other sizes as they are.
    return call.d.squeeze(x, [d for d in wanted if x.shape[d] == 1])


def expand(call: Call, x: Value, *_: Any, **__: Any) -> Value:
    return call.d.broadcast(x, call.out.shape)


def part(
    call: Call, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    refuse(step != 1, "steps")
    dim = axis_of(dim, x.ndim)
    first = first_of(call, x, dim, 0 if start is None else start)
    # The end follows from the result, whose size PyTorch has found: it cuts ends that lie outside.
    size = call.out.shape[dim]
    return sliced(call.d, x, dim, first, call.d.plus(first, call.d.size(size)), size)


def first_of(call: Call, x: Value, dim: int, start: Any) -> Any:
    """Non-negative start of a slice.

    :raises Refused: if it depends on symbolic sizes.
    """
    size = x.shape[dim]
    if isinstance(start, int) and isinstance(size, int):
        return min(max(start + size if start < 0 else start, 0), size)
    if isinstance(start, int):
        # PyTorch adds the size to negative starts, and cuts a large one to it.
        refuse(start < 0 or start >= sys.maxsize, "a start that depends on sizes")
        return start
    refuse(True, "a start that is not known")
    return None


def select(call: Call, x: Value, dim: int, index: Any) -> Value:
    dim = axis_of(dim, x.ndim)
    refuse(not isinstance(index, int), "an index that is not known")
    first = first_of(call, x, dim, index)
    return pick(call.d, x, dim, first)


def parts(call: Call, x: Value, _: Any = None, dim: int = 0) -> list[Value]:
    dim, place, found = axis_of(dim, x.ndim), 0, []
    # Sizes are the results': the last part of `split` may be smaller.
    for p in call.outputs:
        size = p.shape[dim]
        refuse(not isinstance(size, int), "parts of unknown sizes")
        found.append(sliced(call.d, x, dim, place, place + size, size))
        place += size
    return found


def unbind(call: Call, x: Value, dim: int = 0) -> list[Value]:
    dim = axis_of(dim, x.ndim)
    places = range(len(call.outputs))
    return [pick(call.d, x, dim, i) for i in places]


def cat(call: Call, tensors: Sequence[Value], dim: int = 0) -> Value:
    given = [call.d.cast(x, dtype_of(call.out)) for x in tensors]
    return joined(call, given, axis_of(dim, given[0].ndim))


def joined(call: Call, given: list[Value], dim: int) -> Value:
    """Concatenate tensors along ``dim``."""
    # `cat` of one tensor is a copy in PyTorch.
    if len(given) == 1:
        return call.d.op("set", (given[0].dtype, given[0].shape), given[0])
    return call.d.op("cat", (given[0].dtype, call.out.shape), given, dim=dim)


def stack(call: Call, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = dim % call.out.ndim
    given = [call.d.cast(x, dtype_of(call.out)) for x in tensors]
    return joined(call, [inserted(call, x, dim) for x in given], dim)


def repeat(call: Call, x: Value, repeats: Sequence[Any]) -> Value:
    """Repeat by a broadcast to twice the dimensions, (repeat, size) for each, and a reshape."""
    refuse(not all(isinstance(n, int) for n in repeats), "an unknown number of times")
    shape: list[Dim] = [*([1] * (len(repeats) - x.ndim)), *x.shape]
    twice = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    dims = [2 * i + 1 for i in range(len(repeats) - x.ndim, len(repeats))]
    spread = call.d.broadcast(x, twice, dims) if repeats else x
    return call.d.reshape(spread, call.out.shape)


def pad(call: Call, x: Value, widths: Sequence[Any], value: Any = 0) -> Value:
    given = [w if isinstance(w, int) else call.d.size(w.size) for w in widths]
    return call.d.pad(x, given, value, call.out.shape)


def widths(ndim: int, dim: int, before: Any, after: Any) -> list[Any]:
    """Widths of padding along one dimension, the last dimension first."""
    found: list[Any] = [0] * (2 * (ndim - dim))
    found[-2:] = [before, after]
    return found


def slice_backward(
    call: Call, g: Value, sizes: Any, dim: int, start: Any, end: Any, step: int
) -> Value:
    refuse(step != 1, "steps")
    dim, out = axis_of(dim, g.ndim), call.out.shape
    first = first_of(call, Value("", "", out), dim, start)
    after = call.d.plus(call.d.size(out[dim]), call.d.plus(first, call.d.size(g.shape[dim])), True)
    return call.d.pad(g, widths(g.ndim, dim, first, after), 0, out)


def select_backward(call: Call, g: Value, sizes: Any, dim: int, index: Any) -> Value:
    out = call.out.shape
    dim = dim % len(out)
    refuse(not isinstance(index, int), "an index that is not known")
    first = first_of(call, Value("", "", out), dim, index)
    after = call.d.plus(call.d.size(out[dim]), first + 1, True)
    return call.d.pad(inserted(call, g, dim), widths(len(out), dim, first, after), 0, out)


def triangle(test: str) -> Any:
    """Make the translation that keeps the elements on one side of a diagonal."""

    def translate(call: Call, x: Value, diagonal: int = 0) -> Value:
        shape = x.shape
        rows = call.d.broadcast(call.d.iota(shape[-2]), shape, [x.ndim - 2])
        columns = call.d.broadcast(call.d.iota(shape[-1]), shape, [x.ndim - 1])
        limit = call.each("add", shape, rows, diagonal, compute="Int")
        kept = call.each(test, shape, columns, limit, compute="Int", result="Bool")
        wide = call.wide(x)
        zero = call.d.full((), 0, wide.dtype)
        return call.d.op("where", (wide.dtype, shape), kept, wide, call.d.broadcast(zero, shape))

    return translate


def full(call: Call, fill: Any) -> Value:
    """Make a tensor like the first result, filled with ``fill``."""
    refuse(not isinstance(fill, int | float | Number), "a number that nvFuser has not")
    return call.d.full(call.out.shape, fill, dtype_of(call.out))


def arange(call: Call, *args: Any, **_: Any) -> Value:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    refuse(dtype_of(call.out) not in ("Int", "Int32"), "a range of floats")
    refuse(type(start) is not int or type(step) is not int, "a start that is not known")
    return call.d.iota(call.out.shape[0], start, step)


def fill(call: Call, x: Value, value: Any) -> Value:
    if isinstance(value, Value):
        return call.d.op("set", (value.dtype, x.shape), call.d.broadcast(value, x.shape))
    return full(call, value)


def copy(call: Call, x: Value, source: Value, _: bool = False) -> Value:
    spread = call.d.broadcast(source, x.shape)
    return call.d.op("set", (spread.dtype, spread.shape), spread)


def slice_scatter(
    call: Call,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    refuse(step != 1, "steps")
    return put(call, x, source, axis_of(dim, x.ndim), 0 if start is None else start)


def select_scatter(call: Call, x: Value, source: Value, dim: int, index: int) -> Value:
    dim = axis_of(dim, x.ndim)
    return put(call, x, inserted(call, source, dim), dim, index)


def put(call: Call, x: Value, source: Value, dim: int, start: Any) -> Value:
    """``x`` with ``source`` at ``start`` along ``dim``."""
    sizes = x.shape[dim], source.shape[dim]
    refuse(not all(isinstance(n, int) for n in sizes), "places of unknown sizes")
    whole, size = (int(n) for n in sizes if isinstance(n, int))
    first = first_of(call, x, dim, start)
    pieces = [call.d.cast(source, x.dtype)]
    if first:
        pieces.insert(0, sliced(call.d, x, dim, 0, first, first))
    if (end := first + size) < whole:
        pieces.append(sliced(call.d, x, dim, end, whole, whole - end))
    return joined(call, pieces, dim)


def places(translate: Any) -> Operation:
    return Operation(translate, computes=False)


OPERATIONS: Operations = {
    **dict.fromkeys(
        (
            "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default",
            "aten._reshape_alias.default",
        ),
        places(view),
    ),
    "aten.permute.default": places(permute),
    "aten.transpose.int": places(transpose),
    "aten.t.default": places(transpose),
    "aten.unsqueeze.default": places(unsqueeze),
    "aten.squeeze.default": places(squeeze),
    "aten.squeeze.dim": places(squeeze),
    "aten.squeeze.dims": places(squeeze),
    "aten.expand.default": places(expand),
    "aten.alias.default": places(expand),
    "aten.detach.default": places(expand),
    "aten.slice.Tensor": places(part),
    "aten.select.int": places(select),
    "aten.split.Tensor": places(parts),
    "aten.split_with_sizes.default": places(parts),
    "aten.unbind.int": places(unbind),
    "aten.cat.default": places(cat),
    "aten.stack.default": places(stack),
    "aten.repeat.default": places(repeat),
    "aten.constant_pad_nd.default": places(pad),
    "aten.slice_backward.default": places(slice_backward),
    "aten.select_backward.default": places(select_backward),
    "aten.slice_scatter.default": places(slice_scatter),
    "aten.select_scatter.default": places(select_scatter),
    "aten.copy.default": places(copy),
    "aten.tril.default": places(triangle("le")),
    "aten.triu.default": places(triangle("ge")),
    "aten.full.default": places(lambda call, _, fill, **__: full(call, fill)),
    "aten.full_like.default": places(lambda call, _, fill, **__: full(call, fill)),
    "aten.new_full.default": places(lambda call, _, __, fill, **___: full(call, fill)),
    "aten.scalar_tensor.default": places(lambda call, value, **_: full(call, value)),
    "aten.fill.Scalar": places(fill),
    "aten.fill.Tensor": places(fill),
    **{
        f"aten.{name}.default": places(lambda call, *_, value=value, **__: full(call, value))
        for value, kind in ((0, "zeros"), (1, "ones"))
        for name in (kind, f"{kind}_like", f"new_{kind}")
    },
    "aten.arange.default": places(arange),
    "aten.arange.start": places(arange),
    "aten.arange.start_step": places(arange),
}  # fmt: skip
"""Operations that place elements, by the names of their symbols."""
