"""The operations of PyTorch's autocast lists as programs: as its own tests call them, and op_db."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tj_conformance.databases.op_db import full_name, operations, sample_arguments
from tj_conformance.oracle.case import Case, Cases
from torch.utils import _pytree as pytree

__all__ = ["entries", "listed", "sampled"]

_NAMESPACES = {
    "torch": torch,
    "methods": torch.Tensor,
    "nn": torch._C._nn,
    "linalg": torch._C._linalg,  # type: ignore[attr-defined]
}
"""Namespaces of the operations of a list, by the beginning of the list's name."""


def listed(dtype: torch.dtype, device: str = "cpu") -> dict[str, Case]:
    """Every operation of the lists for ``device`` under autocast to ``dtype``, by name.

    Floating arguments require gradients. An operation of several lists is a program of each.
    """
    found = Cases()
    for name, function, args, kwargs in entries(device):
        found.add(name, _program(function, args, kwargs, dtype, device, always=True))
    return found


def sampled(dtype: torch.dtype, count: int, device: str = "cpu") -> dict[str, Case]:
    """The first ``count`` samples of each entry of op_db with an autocast policy, by name."""
    found = Cases()
    for op in operations():
        if not _autocasts(op, device):
            continue
        grad = op.supports_autograd
        for i, (args, kwargs) in enumerate(sample_arguments(op, torch.float32, count, grad)):
            make = _program(op.op, args, kwargs, dtype, device)
            found.add(f"{full_name(op)}.{i}", make)
    return found


_ELSEWHERE = {
    "nn.functional.pad": ("reflection_pad1d", "replication_pad1d"),
    "nn.functional.cross_entropy": ("cross_entropy_loss",),
    "nn.functional.grid_sample": ("grid_sampler",),
    "nn.functional.bilinear": ("bmm",),
    "nn.functional.multi_head_attention_forward": ("bmm",),
    "einsum": ("bmm",),
    "tensordot": ("mm",),
    "linalg.multi_dot": ("mm",),
    "inner": ("mm",),
}
"""Entries with another name in op_db, and the operators in them that have an autocast policy."""


def _autocasts(op: Any, device: str) -> bool:
    """Check that autocast has a policy for an operation, or for an operation inside it."""
    last = op.name.rpartition(".")[2]
    names = (op.aten_name, last, op.name.replace(".", "_"), *_ELSEWHERE.get(op.name, ()))
    return any(_has_policy(name, device) for name in names)


def _has_policy(name: str, device: str) -> bool:
    return f"aten::{name}" in _with_policy(device)


@functools.cache
def _with_policy(device: str) -> frozenset[str]:
    """Names of operators with an autocast kernel, without overloads."""
    has_kernel, key = torch._C._dispatch_has_kernel_for_dispatch_key, f"Autocast{device.upper()}"
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(n.partition(".")[0] for n in names if has_kernel(n, key))


def entries(device: str) -> Iterator[tuple[str, Callable[..., Any], Any, Any]]:
    from torch.testing._internal import autocast_test_lists

    made = getattr(autocast_test_lists, f"Autocast{device.upper()}TestLists", None)
    lists = (made or autocast_test_lists.AutocastTestLists)(torch.device(device))
    for kind, entries in vars(lists).items():
        if not isinstance(entries, list) or kind.startswith("banned"):
            continue
        for i, (name, args, *more) in enumerate(entries):
            owner = _NAMESPACES[kind.partition("_")[0]]
            function = getattr(owner, name, None) or getattr(torch, name)
            # The lists have booleans beside keywords, for what their own tests are to leave out.
            kwargs = next((m for m in more if isinstance(m, dict)), {})
            yield f"{kind}.{i}.{name}", function, args, kwargs


def _program(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    dtype: torch.dtype,
    device: str,
    *,
    always: bool = False,
) -> Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Make a program that calls ``function``; with ``always``, all arguments that can require grad
    do.
    """
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def program(*values: torch.Tensor) -> Any:
        given = list(leaves)
        for i, value in zip(tensors, values, strict=True):
            given[i] = value
        positional, named = pytree.tree_unflatten(given, spec)
        with torch.autocast(device, dtype=dtype):
            return function(*positional, **named)

    def make() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return program, tuple(_copy(leaves[i], always) for i in tensors)

    return make


def _copy(tensor: torch.Tensor, always: bool) -> torch.Tensor:
    wanted = tensor.requires_grad or (always and tensor.is_floating_point())
    return tensor.detach().clone().requires_grad_(wanted)
