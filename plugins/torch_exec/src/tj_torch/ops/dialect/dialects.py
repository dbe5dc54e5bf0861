"""Dialects of PyTorch's namespaces: preludes, and what the core asks of functions in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tj_core.extend import Dialect, Symbol, TensorProxy

from tj_torch.ops.dialect.fastest_function import entry
from tj_torch.ops.dialect.fingerprint import fingerprint
from tj_torch.ops.dialect.runtime_values import VALUES
from tj_torch.ops.facts.autograd_marks import checks_writes
from tj_torch.ops.naming.names import Names
from tj_torch.ops.naming.paths import walk
from tj_torch.ops.naming.resolve import resolve, root
from tj_torch.runtime.compile_lock import BESIDE
from tj_torch.torch_private.runtime import OpOverloadPacket, operator_names

__all__ = ["dialects"]

PRELUDES: Mapping[str, tuple[str, ...]] = {
    "aten": ("import torch", "aten = torch.ops.aten"),
    "builtins": ("import builtins",),
    "operator": ("import operator",),
    "tj": ("from tj_torch import glue as tj",),
    "torch": ("import torch",),
}
"""Lines that import each namespace with a dialect."""


def dialects() -> tuple[Dialect, ...]:
    """Dialects of the fixed namespaces."""
    fast, values, checks = {"aten": entry}, {"torch": VALUES}, {"torch": checks_writes}
    beside = {"torch": BESIDE}
    return tuple(
        Dialect(
            name,
            prelude,
            resolve,
            fast.get(name),
            values.get(name),
            checks.get(name),
            known,
            spelled,
            fingerprint,
            beside.get(name),
        )
        for name, prelude in PRELUDES.items()
    )


def known(symbol: Symbol) -> list[str]:
    """Known names in the namespace of an unknown ``symbol``, to suggest one.

    Empty for operators of libraries, which may still be loaded.
    """
    if symbol.namespace == "torch" and symbol.name.startswith("ops."):
        return []
    *way, _ = symbol.path.split(".")
    holder = walk(root(symbol.namespace))
    for i, part in enumerate(way):
        if not hasattr(holder, part):
            way = way[:i]
            break
        holder = getattr(holder, part)
    names = holder.overloads() if isinstance(holder, OpOverloadPacket) else _names_in(holder)
    return [".".join([symbol.namespace, *way, name]) for name in names]


def spelled(symbol: Symbol) -> str | None:
    """Canonical name of ``symbol`` in calls with tensors, None if it is canonical.

    The spelling depends on the arguments; calls with one, two and three tensors are tried.
    """
    if symbol.namespace != "torch" or symbol.variant:
        return None
    try:
        function = resolve(symbol)
    except LookupError:
        return None
    names, tensor = Names(), TensorProxy("x", (2, 2), (2, 1))
    found = (names.symbol(function, (tensor,) * count, {}).symbol for count in (1, 2, 3))
    return next((other.qualname for other in found if other != symbol), None)


def _names_in(holder: Any) -> list[str]:
    return operator_names("aten") if holder is torch.ops.aten else dir(holder)
