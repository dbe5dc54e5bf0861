"""Sizes and strides of tensors for some values of their symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tj_core.extend import NumberProxy, SymDim, TensorProxy, evaluate_size
from tj_torch.internal import row_major

__all__ = ["hints_of", "layouts", "like_dense", "like_ones"]

Numbers = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides."""

_MORE = (0, 1, 5)
"""Numbers added to the hints: strides that are equal for all of them are taken for equal."""


def hints_of(proxies: Iterable[object]) -> dict[str, int]:
    """The value in the traced call of each symbol that is a size, a stride or a number."""
    found: dict[str, Any] = {}
    for p in proxies:
        if isinstance(p, TensorProxy):
            found |= {n.name: n.hint for n in (*p.shape, *p.strides) if isinstance(n, SymDim)}
        elif isinstance(p, NumberProxy) and p.expr:
            found[p.expr] = p.hint
    return {n: hint for n, hint in found.items() if isinstance(hint, int) and n.isidentifier()}


def layouts(p: TensorProxy, hints: Mapping[str, int], varied: Sequence[str]) -> list[Numbers]:
    """The layouts of ``p`` for ``hints`` and other values of ``varied``; [] if one is unknown."""
    found = []
    for more in _MORE:
        values = {name: hint + more * (name in varied) for name, hint in hints.items()}
        try:
            shape, strides = (
                tuple(int(evaluate_size(str(n), values.__getitem__)) for n in numbers)
                for numbers in (p.shape, p.strides)
            )
        except KeyError:  # it depends on data
            return []
        found.append((shape, strides))
    return found


def like_ones(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """``strides``, with 0 for dimensions of size one, whose strides tell nothing."""
    return tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


def like_dense(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """`like_ones` of ``strides`` if a tensor with these is dense, else of a contiguous one."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return like_ones(shape, [n for n in row_major(shape) if isinstance(n, int)])
        expected *= size
    return like_ones(shape, strides)
