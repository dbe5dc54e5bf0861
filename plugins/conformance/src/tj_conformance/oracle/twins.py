"""Copies of a call's arguments that are like them in every respect, memory layout included."""

from __future__ import annotations

from typing import Any

import torch
from tj_torch.extend import set_conj, set_neg, storage_id
from torch.utils import _pytree as pytree

__all__ = ["clone_tree", "twin"]


def clone_tree(tree: Any) -> Any:
    """``tree`` with every tensor copied; tensors that share storage, or are one, do so afterwards.

    Strides, storage offset, conjugate and negative bits stay; parameters stay parameters. Copies
    are leaves.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, torch.Tensor] = {}

    def clone(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:
            copies[id(value)] = twin(value, storages)
        return copies[id(value)]

    return pytree.tree_map(clone, tree)


def twin(
    tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage] | None = None
) -> torch.Tensor:
    """One tensor like ``tensor``, on a copy of its storage: the one in ``storages``, if there."""
    copy = _plain(tensor, {} if storages is None else storages)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


@torch.no_grad()
def _plain(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    key = storage_id(tensor)
    if key not in storages:
        storages[key] = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        set_conj(copy)
    if tensor.is_neg():
        set_neg(copy)
    return copy
