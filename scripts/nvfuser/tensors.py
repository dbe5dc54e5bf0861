"""Tensors that claim to be on a CUDA device, and are on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

__all__ = ["Pretended", "Pretending"]

aten = torch.ops.aten

DEVICE = torch.device("cuda", 0)

Operator = Callable[..., Any]


class Pretended(torch.Tensor):
    """``inner`` as a tensor on the device; operators compute with ``inner``."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[Pretended], inner: torch.Tensor) -> Pretended:
        """A wrapper with the metadata of ``inner``."""
        made: Pretended = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, operator: Operator, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute on the CPU."""
        return computed(operator, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Mode in which factory operators for the device make `Pretended` tensors.

    ``instead`` are replacements of some operators, in addition to `MISSING`.
    """

    def __init__(self, instead: dict[Operator, Operator] | None = None) -> None:
        super().__init__()
        self.instead = MISSING | (instead or {})

    def __torch_dispatch__(
        self, operator: Operator, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute on the CPU."""
        return computed(self.instead.get(operator, operator), args, kwargs or {})


def attention(*args: Any, scale: Any = None) -> Any:
    """Flash attention by the CPU's operator, with the strides of CUDA's."""
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(*args[:5], scale=scale)
    operator = aten._scaled_dot_product_flash_attention.default
    made = tree_map(filled, operator(*tree_map(empty, args), scale=scale))
    return laid(out, made[0]), laid(sums, made[1]), *made[2:]


def attention_backward(*args: Any, scale: Any = None) -> Any:
    """Gradients of `attention`."""
    operator = aten._scaled_dot_product_flash_attention_for_cpu_backward
    found = operator(*args[:6], *args[10:12], scale=scale)
    operator = aten._scaled_dot_product_flash_attention_backward.default
    made = operator(*tree_map(empty, args), scale=scale)
    return tuple(map(laid, found, made))


def empty(x: Any) -> Any:
    """``x`` on the meta device, to compute metadata."""
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def filled(x: Any) -> Any:
    """Allocate a tensor like the meta tensor ``x``."""
    return torch.zeros_like(x, device="cpu") if isinstance(x, torch.Tensor) else x


def laid(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``x`` with the strides of ``like``."""
    return torch.empty_strided(x.shape, like.stride(), dtype=x.dtype, device=x.device).copy_(x)


MISSING: dict[Operator, Operator] = {
    aten._scaled_dot_product_flash_attention.default: attention,
    aten._scaled_dot_product_flash_attention_backward.default: attention_backward,
}
"""CPU implementations of operators that exist for CUDA alone."""


def computed(operator: Operator, args: Any, kwargs: Any) -> Any:
    """Run ``operator`` on the CPU tensors inside."""
    return tree_map(outside, operator(*tree_map(inside, args), **tree_map(inside, kwargs)))


def inside(x: Any) -> Any:
    """``x`` with the CPU tensors inside."""
    if isinstance(x, Pretended):
        return x.inner
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == "cuda" else x


def outside(x: Any) -> Any:
    """``x`` with its tensors wrapped."""
    plain = isinstance(x, torch.Tensor) and not isinstance(x, Pretended)
    return Pretended(x) if plain else x
