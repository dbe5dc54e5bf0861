"""Example inputs of a region, for Inductor to trace it with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    Dim,
    FusionRegion,
    NumberProxy,
    Proxy,
    TensorProxy,
    evaluate_size,
    size_symbols,
)
from tj_torch.extend import device_to_torch, dtype_to_torch

if TYPE_CHECKING:
    from tj_torch.internal import RunSymbols

__all__ = ["as_declared", "example_inputs", "reads_strides", "relaid"]


def example_inputs(inputs: Iterable[Proxy], symbols: RunSymbols | None = None) -> list[Any]:
    """Make tensors with the metadata of a region's ``inputs``; fake ones, in a fake tensor mode.

    Sizes that are not fixed are numbers of ``symbols``.
    """
    return [_example(p, symbols) for p in inputs]


STRIDES_READ = frozenset({"as_strided", "as_strided_scatter", "as_strided_copy"})
"""Operators whose results depend on the strides of their arguments."""


def reads_strides(region: FusionRegion) -> bool:
    """Check that values of the region depend on the strides of its inputs."""
    return any(call.symbol.path.partition(".")[0] in STRIDES_READ for call in region.body.calls)


def relaid(region: FusionRegion, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``run``, to copy inputs first that do not have the strides they declare."""

    def laid_out(*inputs: torch.Tensor) -> Any:
        found = list(inputs)
        # Their strides were free when the region was made, and another kernel has chosen them.
        for i in region.strides:
            found[i] = _copied(example_inputs([region.inputs[i]])[0], inputs[i])
        return run(*found)

    return laid_out


def as_declared(
    symbols: RunSymbols | None, seen: Container[str] = ()
) -> Callable[[Proxy, Any], Any]:
    """A function that copies a value whose data type or layout is not as its proxy says.

    Inductor's formula of an operator may give others than the kernel, whose result a later call
    reads or views, or the region returns. The stride of a dimension of size one tells nothing,
    except to users, of the values whose names are in ``seen``.
    """

    def found(p: Proxy, value: Any) -> Any:
        if not isinstance(p, TensorProxy) or not isinstance(value, torch.Tensor):
            return value
        value = value.to(dtype_to_torch(p.dtype))  # the same tensor where that is its type
        strides = [_size(n, symbols) for n in p.strides]
        with contextlib.nullcontext() if symbols is None else _untraced():
            sizes = zip(value.shape, value.stride(), strides, strict=True)
            free = p.name not in seen
            if all(mine == theirs or (free and size == 1) for size, mine, theirs in sizes):
                return value
        return _copied(_example(p, symbols), value)

    return found


def _untraced() -> contextlib.AbstractContextManager[object]:
    """A context in which ``make_fx`` does not trace comparisons of numbers.

    Of PyTorch before 2.14 it traces none of ``s0**2``, a stride of three equal dimensions.
    """
    from tj_inductor.adapter.names import disable_proxy_modes_tracing

    context: contextlib.AbstractContextManager[object] = disable_proxy_modes_tracing()
    return context


def _copied(like: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``value`` with the strides of ``like``."""
    # `clone` chooses strides by a memory format; the result of `aten.copy` has those of its first
    # argument.
    copied: torch.Tensor = torch.ops.aten.copy.default(like, value)
    return copied


NUMBERS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}
"""Conversions from the text of a constant, by the kind of number."""


def _example(p: Proxy, symbols: RunSymbols | None) -> Any:
    if isinstance(p, NumberProxy):
        if p.expr and not size_symbols(p.expr):  # computed as the program runs, always the same
            return NUMBERS[p.kind](evaluate_size(p.expr, dict[str, Any]().__getitem__))
        assert symbols is not None
        assert p.expr
        return symbols.number(p.expr, p.kind)
    assert isinstance(p, TensorProxy)
    shape, strides = ([_size(n, symbols) for n in dims] for dims in (p.shape, p.strides))
    device = device_to_torch(p.device)
    return torch.empty_strided(shape, strides, dtype=dtype_to_torch(p.dtype), device=device)


def _size(size: Dim, symbols: RunSymbols | None) -> Any:
    if isinstance(size, int):
        return size
    assert symbols is not None
    return symbols.number(size.name)
