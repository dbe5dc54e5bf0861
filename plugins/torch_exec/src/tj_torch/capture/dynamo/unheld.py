"""Calls that no trace can hold, in graphs that say all the same what the program does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from tj_core.extend import BoundSymbol, CaptureError

from tj_torch.capture.sources import node_source

__all__ = ["UNHELD", "UnheldError", "check_held", "check_nested"]

_REPLACED = "replaces a tensor's storage"
_VERSION = "works on versions, which a program has none of until it returns"

UNHELD: Mapping[str, str] = MappingProxyType(
    {
        "Tensor.resize_": _REPLACED,
        "Tensor.resize_as_": _REPLACED,
        "Tensor.set_": _REPLACED,
        "autograd.graph.increment_version": _VERSION,
        "ops.prims._tensor_version.default": _VERSION,
        "ops.prims._unsafe_set_version_counter.default": _VERSION,
    }
)
"""Names in namespace ``torch``, to the reason.

After those that replace storage, which Dynamo also makes of ``x.data = y``, an object has another
shape and memory than a trace knows of.
"""


class UnheldError(CaptureError):
    """The captured graph is right as it is, but has no trace: it may run as it is."""


def check_held(call: BoundSymbol) -> None:
    """See that a trace can hold ``call``.

    :raises UnheldError: if not.
    """
    reason = UNHELD.get(call.symbol.name)
    if reason is not None and call.symbol.namespace == "torch":
        raise UnheldError(f"{call.symbol} {reason}", source=call.source)


def check_nested(graph: torch.fx.GraphModule) -> None:
    """See that no value in ``graph`` is a nested tensor.

    :raises UnheldError: if one is: a trace has no sizes that differ from row to row.
    """
    for node in graph.graph.nodes:
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor) and example.is_nested:
            reason = "a nested tensor has sizes that differ from row to row"
            raise UnheldError(reason, source=node_source(node))
