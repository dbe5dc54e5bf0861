"""Gradients of sharded models that add up without communication, as over microbatches.

Without synchronisation the gradient of what is gathered goes to a leaf of its size, which has no
memory of its own, and a hook of autograd adds it to the others of its parameter. A backward that
synchronises again goes the same way, and the hook reduces the sums. Programs have the gathers then;
the reductions follow the backward.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

__all__ = ["LEAVES", "Accumulation", "leading_to"]

LEAVES = "_tj_gradients"
"""The attribute of a module of a sharded model with the leaves of its parameters, by name."""


class Accumulation:
    """The gradients of one model that wait for a reduction.

    ``on``: forwards lead gradients to leaves. ``reduced`` gives the shard of the average of a sum.
    """

    def __init__(self, reduced: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
        self.on = False
        self._sync = True
        self._reduced = reduced
        self._sums: dict[nn.Parameter, torch.Tensor] = {}
        self._leaves: dict[nn.Parameter, torch.Tensor] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Accumulation:
        """Gradients are not copied, as those of a parameter are not."""
        return Accumulation(copy.deepcopy(self._reduced, memo))

    def set_sync(self, model: nn.Module, sync: bool, types: Callable[[Any], Any]) -> None:
        """Let backwards of ``model`` reduce gradients, or keep them.

        ``types`` gives the data types of a gathered parameter and of its reduction.
        """
        self._sync = sync
        if not sync:
            self._lead(model, types)
        self.on = not sync or bool(self._sums)

    def _lead(self, model: nn.Module, types: Callable[[Any], Any]) -> None:
        """Make leaves for the parameters that need gradients and have none."""
        new = []
        for module in model.modules():
            named = module.named_parameters(recurse=False, remove_duplicate=False)
            for name, shard in named:
                if shard.requires_grad and shard not in self._leaves:
                    self._leaves[shard] = _leaf(shard, types(shard.dtype)[0])
                    new.append(shard)
                if shard in self._leaves:
                    vars(module).setdefault(LEAVES, {})[name] = self._leaves[shard]
        if new:
            reductions = [types(shard.dtype)[1] for shard in new]
            mine = weakref.ref(self)  # a hook is held by its tensors, which this holds

            def add(grads: Sequence[torch.Tensor | None]) -> None:
                if (own := mine()) is not None:
                    own._add(new, grads, reductions)

            # Called once in a backward, when those leaves that it reaches have their gradients.
            register_multi_grad_hook([self._leaves[shard] for shard in new], add)

    def _add(
        self,
        shards: Sequence[nn.Parameter],
        grads: Sequence[torch.Tensor | None],
        types: Sequence[torch.dtype],
    ) -> None:
        """Add the gradients of a backward; reduce all sums where it synchronises."""
        with torch.no_grad():
            for shard, grad, dtype in zip(shards, grads, types, strict=True):
                if grad is not None:
                    known = self._sums.get(shard)
                    self._sums[shard] = grad.to(dtype) if known is None else known + grad
            if self._sync:
                # The last layer first, as its gradient comes first.
                for shard in reversed(list(self._leaves)):
                    if (total := self._sums.pop(shard, None)) is not None:
                        found = self._reduced(total, shard)
                        shard.grad = found if shard.grad is None else shard.grad + found
                self.on = False


def _leaf(shard: Any, dtype: torch.dtype) -> torch.Tensor:
    """A leaf of the size of the whole parameter; its gradient is dropped once a hook has it."""
    # Spread by strides of 0, it takes the memory of one number.
    made = torch.zeros((), dtype=dtype, device=shard.device).expand(shard.shape).requires_grad_()

    def drop(leaf: torch.Tensor) -> None:
        leaf.grad = None

    made.register_post_accumulate_grad_hook(drop)
    return made


class _Leading(torch.autograd.Function):
    """The first tensor, whose gradient is that of the second."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, grads[0]


def leading_to(leaf: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """``whole``, with a gradient that goes to ``leaf``."""
    apply: Callable[..., torch.Tensor] = _Leading.apply
    return apply(whole, leaf)
