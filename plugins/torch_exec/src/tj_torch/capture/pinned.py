"""Calls that real tensors may refuse and fake ones allow: pinned, to raise where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from tj_core.extend import BoundSymbol, Expanded, TensorProxy, leaves

from tj_torch.ops.metadata_mutation import is_autograd_change

__all__ = ["may_raise_at_run_time", "pinned"]

VIEWS_TO_A_SIZE = frozenset(
    {"torch.Tensor.view", "torch.Tensor.view_as", "aten.view", "aten.view.default"}
)
"""These need strides that allow the new sizes."""


def may_raise_at_run_time(call: BoundSymbol) -> bool:
    """Whether ``call`` may raise for tensors that are no fakes."""
    return is_autograd_change(call) or _is_refused_view(call)


def pinned(facts: Expanded) -> Expanded:
    """``facts`` of a call that has to stay where it is, and whole."""
    return replace(facts, effects=replace(facts.effects, ordered=("side_effect",)), body=None)


def _is_refused_view(call: BoundSymbol) -> bool:
    if call.symbol.qualname not in VIEWS_TO_A_SIZE or not isinstance(call.args[0], TensorProxy):
        return False
    viewed, *sizes = call.args
    size = [n for p in (*sizes, *(v for _, v in call.kwargs)) for n in _sizes(p)]
    if not all(isinstance(n, int) for n in (*viewed.shape, *viewed.strides, *size)):
        return False
    try:  # a tensor without memory, of which PyTorch's own kernel judges
        like: Any = torch.empty_strided(viewed.shape, viewed.strides, device="meta")  # type: ignore[arg-type]
        like.view(size)
    except RuntimeError:
        return True
    return False


def _sizes(argument: Any) -> Sequence[Any]:
    return argument.shape if isinstance(argument, TensorProxy) else [*leaves(argument)]
