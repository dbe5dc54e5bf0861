"""Figures of calls for estimates of time: bytes of values, and arithmetic of products."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tj_core.extend import BoundSymbol, NumberProxy, OpaqueProxy, Proxy, TensorProxy, map_tree
from torch.utils.flop_counter import flop_registry

from tj_torch.ops.naming.resolve import resolve

__all__ = ["byte_size", "is_product", "multiplies", "operations", "parts_to_count"]


def byte_size(p: Proxy) -> int:
    """Memory of a value in bytes; symbolic sizes count as their hints."""
    if isinstance(p, NumberProxy | OpaqueProxy):
        return 1
    assert isinstance(p, TensorProxy)
    sizes = (n if isinstance(n, int) else (n.hint or 1) for n in p.shape)
    return math.prod(sizes) * max(1, p.dtype.bits // 8)


def is_product(call: BoundSymbol) -> bool:
    """Test for a matrix product, a convolution or attention, of any size."""
    return _counter(call) is not None


def multiplies(call: BoundSymbol) -> bool:
    """Test for a call with a matrix product, a convolution or attention in it, of any size."""
    return any(map(is_product, parts_to_count(call)))


def parts_to_count(call: BoundSymbol) -> list[BoundSymbol]:
    """The operators in ``call``, as `operations` counts: a product is not taken apart.

    Bodies of bodies are entered.
    """
    if call.body is None or not call.body.calls or is_product(call):
        return [call]
    return [operator for part in call.body.calls for operator in parts_to_count(part)]


def operations(call: BoundSymbol) -> float:
    """Multiplications and additions of a matrix product, convolution or attention; 0 for others.

    The formulas are those of `torch.utils.flop_counter`.
    """
    count = _counter(call)
    if count is None:
        return 0.0
    # The functions in `flop_registry` take shapes for tensors (`shape_wrapper`).
    args = map_tree(_shape, call.args, Proxy)
    first = call.flat_outs[0]
    return float(count(*args, out_val=_shape(first)))


def _counter(call: BoundSymbol) -> Callable[..., Any] | None:
    try:
        packet = getattr(resolve(call.symbol), "overloadpacket", None)
    except LookupError:
        return None
    return _counters().get(str(packet).removesuffix("_for_cpu"))


@functools.cache
def _counters() -> dict[str, Callable[..., Any]]:
    return {str(key): count for key, count in flop_registry.items()}


def _shape(p: Proxy) -> Any:
    """Shape of a tensor, symbols by their hints; 1 for other values."""
    if not isinstance(p, TensorProxy):
        return 1
    return tuple(n if isinstance(n, int) else (n.hint or 1) for n in p.shape)
