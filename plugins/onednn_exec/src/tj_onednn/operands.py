"""Calls that oneDNN can run, by their metadata; a call as text; tensors like its arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Constant,
    Proxy,
    SymDim,
    TensorProxy,
    contiguous_strides,
    leaves,
    map_tree,
    may_overlap,
)
from tj_torch.extend import dtype_to_torch, is_on

__all__ = ["call_key", "example", "factors", "tensors_of", "unfit"]

DTYPES = ("float32", "bfloat16", "float16")

LARGEST = 1 << 31
"""Bytes of all arguments above which nothing is measured: a measurement allocates them again."""


def unfit(
    call: BoundSymbol, by_rows: bool = True, outs: Sequence[Proxy] | None = None
) -> str | None:
    """Reason why oneDNN's operators cannot run ``call``, or None.

    With ``by_rows`` the result must be contiguous, as these operators return it. ``outs`` are the
    results that count, all by default.
    """
    if is_on(call.context):
        return "it runs under autocast"
    values = (*call.flat_args, *(call.flat_outs if outs is None else outs))
    reason = next(filter(None, map(_unfit, values)), None)
    if reason is not None:
        return reason
    tensors = tensors_of(call.flat_args)
    if len({p.dtype for p in tensors}) > 1:
        return "its arguments differ in data type"
    if any(map(may_overlap, tensors[1:])):  # the first is copied by oneDNN's operator
        return "elements of an argument share memory"
    results = tensors_of(call.flat_outs) if by_rows else ()
    if any(p.strides != contiguous_strides(p.shape) for p in results):
        return "its result is not laid out by rows"
    if sum(math.prod(_numbers(p.shape)) * p.dtype.bits for p in tensors) > LARGEST * 8:
        return "its arguments are too large to be measured"
    return None


def tensors_of(values: Iterable[Proxy]) -> list[TensorProxy]:
    """Tensors among ``values``."""
    return [p for p in values if isinstance(p, TensorProxy)]


def _unfit(p: Proxy) -> str | None:
    if not isinstance(p, TensorProxy):
        return f"{p.name} is no tensor"
    if p.subclass is not None or p.layout != "strided" or p.flags:
        return f"{p.name} is no plain tensor"
    if p.device.type != "cpu":
        return f"{p.name} is on {p.device}"
    if p.dtype.name not in DTYPES:
        return f"oneDNN multiplies no {p.dtype.name}"
    if any(isinstance(n, SymDim) for n in (*p.shape, *p.strides)):
        return f"the sizes of {p.name} are symbols, and choices are measured"
    return f"{p.name} has no elements" if 0 in p.shape else None


def factors(a: TensorProxy, b: TensorProxy) -> int:
    """Number of multiplications of a matrix product, or of a batch of them."""
    return math.prod(_numbers(a.shape)) * _numbers(b.shape)[-1]


def call_key(call: BoundSymbol) -> str:
    """Write ``call`` as text: operation, data types, sizes, strides, constants."""
    parts = [_text(x) for x in leaves((call.args, call.kwargs))]
    return " ".join([call.symbol.qualname, *parts])


def _text(leaf: Any) -> str:
    if not isinstance(leaf, TensorProxy):
        return repr(leaf)
    shape, strides = (",".join(map(str, n)) for n in (leaf.shape, leaf.strides))
    return f"{leaf.dtype}[{shape}]({strides})"


def example(call: BoundSymbol) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make arguments like those of ``call``: tensors of random numbers, from a fixed seed."""
    # A generator of its own: the user's random numbers stay as they are.
    generator = torch.Generator("cpu").manual_seed(0)

    def value(leaf: Any) -> Any:
        if isinstance(leaf, TensorProxy):
            return _random(leaf, generator)
        return leaf.value if isinstance(leaf, Constant) else leaf

    return map_tree(value, call.args), dict(map_tree(value, call.kwargs))


def _random(p: TensorProxy, generator: torch.Generator) -> torch.Tensor:
    shape, strides = _numbers(p.shape), _numbers(p.strides)
    # Enough for all strides: a transposed argument is measured as transposed, not as a copy.
    span = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    flat = torch.empty(span, dtype=dtype_to_torch(p.dtype), device="cpu")
    return flat.uniform_(-1, 1, generator=generator).as_strided(shape, strides)


def _numbers(dims: Sequence[Any]) -> list[int]:
    assert all(isinstance(n, int) for n in dims)
    return list(dims)
