"""Guards on metadata of tensors, and on their being distinct objects; C++ checks them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tj_core.extend import meta_text

from tj_torch.ops.values.convert import tensor_proxy

if TYPE_CHECKING:
    import torch

    from tj_torch.guards.conditions import Conditions
    from tj_torch.guards.guard import Guards

__all__ = ["guard_metadata", "tensor_check", "tensor_texts"]


def tensor_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Make a C++ check that as many values are distinct tensors with the metadata of ``tensors``.

    It compares type, data type, device, sizes, strides, the dispatch key set (layout, conjugate and
    negative bits, functorch's levels, inference tensors), and requires_grad if gradients are on.
    """
    from tj_torch.torch_private.dynamo import TensorGuards

    guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check  # type: ignore[no-any-return]


def tensor_texts(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[str]:
    """The guards of `tensor_check` as text."""
    shown = [
        f"{n} has {meta_text(tensor_proxy('_', t))}" for n, t in zip(names, tensors, strict=True)
    ]
    return [*shown, *(["the tensors are distinct objects"] if len(shown) > 1 else [])]


def guard_metadata(guards: Guards | Conditions, tensors: Mapping[str, torch.Tensor]) -> None:
    """Guard the metadata of ``tensors``, by their names in texts, whose identity is guarded.

    Their ``data`` may be assigned.
    """
    if tensors:
        found = [*tensors.values()]
        name = guards.bind("same_metadata", _same_metadata(found))
        guards.add(f"{name}()", text=", ".join(tensor_texts([*tensors], found)))


def _same_metadata(tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """Make a check that ``tensors``, which it does not keep, have the metadata that they have."""
    check, refs = tensor_check(tensors), [weakref.ref(tensor) for tensor in tensors]

    def same() -> bool:
        found = [ref() for ref in refs]
        return all(tensor is not None for tensor in found) and check(*found)

    return same
