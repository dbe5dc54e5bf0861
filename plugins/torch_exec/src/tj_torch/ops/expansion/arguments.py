"""Fake arguments for one run of a call, made from metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import (
    NO_TAGS,
    Constant,
    Device,
    Dim,
    NumberProxy,
    Proxy,
    TensorProxy,
    contiguous_strides,
    formal_input,
    leaves,
)

from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.values.convert import device_to_torch, dtype_to_torch
from tj_torch.torch_private import ops as private

__all__ = ["Argument", "distinct_proxies", "make_fake", "mentions_missing_device"]


@dataclass(frozen=True, slots=True)
class Argument:
    """Distinct argument proxy, with its first position among the call's proxies."""

    index: int
    proxy: TensorProxy | NumberProxy

    @property
    def formal(self) -> Any:
        """The proxy renamed as a formal input of a body."""
        return self.proxy.replace(name=formal_input(self.index), tags=NO_TAGS)


def distinct_proxies(tree: Any) -> dict[str, Argument]:
    """Tensors and numbers among the leaves of ``tree``, by name.

    :raises CannotExpand: for other proxies, numbers without an expression, and layouts other than
        strided.
    """
    found: dict[str, Argument] = {}
    proxies = (leaf for leaf in leaves(tree) if isinstance(leaf, Proxy))
    for index, proxy in enumerate(proxies):
        if proxy.name not in found:
            found[proxy.name] = Argument(index, _expandable(proxy))
    return found


def _expandable(proxy: Proxy) -> TensorProxy | NumberProxy:
    if isinstance(proxy, NumberProxy) and proxy.expr:
        return proxy
    if not isinstance(proxy, TensorProxy):
        raise CannotExpand(f"argument {proxy.name!r} is known only at run time")
    if proxy.layout != "strided":
        raise CannotExpand(f"argument {proxy.name!r} has layout {proxy.layout}")
    return proxy


def make_fake(
    mode: Any, proxy: TensorProxy, size: Callable[[str], Any] | None = None
) -> torch.Tensor:
    """New fake tensor of ``mode`` with the metadata of ``proxy``, which does not require grad.

    ``size`` maps a size expression to a ``SymInt`` of the mode.
    """

    def sizes(dims: tuple[Dim, ...]) -> tuple[Any, ...]:
        return tuple([d if isinstance(d, int) else size(d.name) for d in dims])  # type: ignore[misc]

    strides = proxy.strides
    if len(strides) != proxy.ndim:
        strides = contiguous_strides(proxy.shape) or ()
    meta = torch.empty_strided(
        sizes(proxy.shape), sizes(strides), dtype=dtype_to_torch(proxy.dtype), device="meta"
    )
    # A lazy conjugate is a bit of the tensor, which `empty_strided` does not take.
    if "conj" in proxy.flags:
        private.set_conj(meta)
    if "neg" in proxy.flags:
        private.set_neg(meta)
    return private.fake_tensor(mode, meta, device_to_torch(proxy.device))


def mentions_missing_device(
    fn: Callable[..., Any], tree: Any, usable: Callable[[str], bool]
) -> bool:
    """Test if a call of ``fn`` may use a device that this machine lacks.

    Autograd asks for the device guard of such a device, and PyTorch then ends the process.
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
