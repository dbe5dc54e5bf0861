"""Fake arguments for one run of a call, made from metadata alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from tj_core.proxy import Device, Proxy, SymDim, TensorProxy, contiguous_strides
from tj_core.symbol import Constant
from tj_core.tree import leaves

from tj_torch.dialect import private
from tj_torch.dialect.convert import device_to_torch, dtype_to_torch
from tj_torch.dialect.errors import CannotExpand

__all__ = ["Argument", "distinct_proxies", "make_fake", "mentions_missing_device"]


@dataclass(frozen=True, slots=True)
class Argument:
    """A distinct argument proxy, and the first of its positions among the call's proxies."""

    index: int
    proxy: TensorProxy

    @property
    def formal(self) -> TensorProxy:
        """The proxy under its name in a body."""
        return TensorProxy(
            f"a{self.index}",
            self.proxy.shape,
            self.proxy.strides,
            self.proxy.dtype,
            self.proxy.device,
            self.proxy.requires_grad,
            self.proxy.layout,
            self.proxy.flags,
            self.proxy.subclass,
        )


def distinct_proxies(tree: Any) -> dict[str, Argument]:
    """The tensors among the leaves of ``tree``, by name; one that occurs twice counts once.

    :raises CannotExpand: for other proxies, symbolic sizes, subclasses and unusual layouts.
    """
    found: dict[str, Argument] = {}
    proxies = (leaf for leaf in leaves(tree) if isinstance(leaf, Proxy))
    for index, proxy in enumerate(proxies):
        if proxy.name not in found:
            found[proxy.name] = Argument(index, _expandable(proxy))
    return found


def _expandable(proxy: Proxy) -> TensorProxy:
    if not isinstance(proxy, TensorProxy):
        raise CannotExpand(f"argument {proxy.name!r} is known only at run time")
    if proxy.subclass is not None:
        raise CannotExpand(f"argument {proxy.name!r} is a tensor subclass, {proxy.subclass.type}")
    if proxy.layout != "strided":
        raise CannotExpand(f"argument {proxy.name!r} has layout {proxy.layout}")
    if any(isinstance(n, SymDim) for n in (*proxy.shape, *proxy.strides)):
        raise CannotExpand("symbolic sizes")
    return proxy


def make_fake(mode: Any, proxy: TensorProxy) -> torch.Tensor:
    """A new fake tensor of ``mode`` with the metadata of ``proxy``; it requires no gradient."""
    strides = proxy.strides
    if len(strides) != proxy.ndim:
        strides = contiguous_strides(proxy.shape) or ()
    shape = cast("tuple[int, ...]", proxy.shape)
    meta = torch.empty_strided(
        shape,
        cast("tuple[int, ...]", strides),
        dtype=dtype_to_torch(proxy.dtype),
        device="meta",
    )
    if "conj" in proxy.flags:
        private.set_conj(meta)
    if "neg" in proxy.flags:
        private.set_neg(meta)
    return private.fake_tensor(mode, meta, device_to_torch(proxy.device))


def mentions_missing_device(
    fn: Callable[..., Any], tree: Any, usable: Callable[[str], bool]
) -> bool:
    """Whether a call of ``fn`` may touch a device that this machine lacks.

    Autograd asks such a device for a guard, and PyTorch then ends the process.
    """
    return any(not usable(kind) for kind in (getattr(fn, "__name__", ""), *_devices(tree)))


def _devices(tree: Any) -> Iterator[str]:
    for leaf in leaves(tree):
        value = leaf.value if isinstance(leaf, Constant) else leaf
        if isinstance(value, TensorProxy):
            value = value.device
        if isinstance(value, Device | torch.device):
            yield value.type
        elif isinstance(value, str):
            yield value.partition(":")[0]
