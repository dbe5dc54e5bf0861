"""The layouts in which a call's tensors are given: of memory, and of size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from tj_conformance.oracle import layouts

if TYPE_CHECKING:
    from tj_conformance.executor.calls import Call

__all__ = ["LAYOUTS", "Inapplicable", "laid_out"]

TIMES = 8
MOST = 1 << 21
"""Most elements of a tensor that is made larger."""


class Inapplicable(Exception):
    """A tensor has no such layout."""


def _expanded(x: torch.Tensor) -> torch.Tensor:
    _need(x.dim() > 0 and x.shape[0] > 1)
    return x[:1].clone().expand(x.shape)


def _offset(x: torch.Tensor) -> torch.Tensor:
    wide = x.new_zeros(x.numel() + 3)
    return wide[3:].view(x.shape).copy_(x)


def _overlapping(x: torch.Tensor) -> torch.Tensor:
    _need(x.dim() > 1 and x.numel() > 0)
    flat = x.reshape(-1)[: sum(x.shape) - x.dim() + 1].clone()
    return flat.as_strided(x.shape, (1,) * x.dim())


def _empty(x: torch.Tensor) -> torch.Tensor:
    _need(x.dim() > 0)
    return x[:0].clone()


def _one(x: torch.Tensor) -> torch.Tensor:
    _need(x.dim() > 0 and x.shape[0] > 0)
    return x[:1].clone()


def _scalar(x: torch.Tensor) -> torch.Tensor:
    _need(x.numel() > 0)
    return x.reshape(-1)[0].clone()


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    _need(x.dim() in formats)
    return x.clone(memory_format=formats[x.dim()])


def _conjugated(x: torch.Tensor) -> torch.Tensor:
    _need(x.is_complex())
    return x.conj().clone().conj()


def _gaps(x: torch.Tensor) -> torch.Tensor:
    _need(x.dim() > 0)
    return layouts.LAYOUTS["gaps"](x)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    _need(x.dim() > 1)
    return layouts.LAYOUTS["reversed"](x)


def _large(x: torch.Tensor) -> torch.Tensor:
    """Repeat all but sizes of one: small calls may not be worth a kernel."""
    times = [TIMES if n > 1 else 1 for n in x.shape]
    _need(max(times, default=1) > 1 and x.numel() * math.prod(times) <= MOST)
    return x.repeat(times)


def _need(condition: bool) -> None:
    if not condition:
        raise Inapplicable


def _where_possible(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """``change``, for tensors that have the layout; others stay."""

    def changed(x: torch.Tensor) -> torch.Tensor:
        if x.layout is not torch.strided:
            return x
        try:
            return change(x)
        except Inapplicable:
            return x

    return changed


LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: _where_possible(change)
    for name, change in {
        "transposed": _transposed,
        "gaps": _gaps,
        "offset": _offset,
        "expanded": _expanded,
        "overlapping": _overlapping,
        "channels_last": _channels_last,
        "conjugated": _conjugated,
        "size 0": _empty,
        "size 1": _one,
        "0-d": _scalar,
        "large": _large,
    }.items()
}
"""Layouts by name: functions of a tensor, which stays as it is if it has no such layout."""


def laid_out(call: Call, names: str) -> Call:
    """``call`` in a layout, or in several, with ``and`` between their names."""
    for name in names.split(" and "):
        call = call.changed(LAYOUTS[name]) if name in LAYOUTS else call
    return call
