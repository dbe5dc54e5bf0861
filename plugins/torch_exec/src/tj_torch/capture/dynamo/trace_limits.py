"""Calls that no trace can hold, in graphs that are otherwise right and run as captured.

Rule table ``unheld``, open to plugins, maps a symbol to the reason: the end of a sentence that
begins with the symbol.
"""

from __future__ import annotations

import torch
from tj_core.extend import BoundSymbol, CaptureError, RuleTable

from tj_torch.capture.sources import node_source

__all__ = ["UNHELD", "UnheldError", "check_held", "check_nested", "rules"]

_REPLACED = "replaces a tensor's storage"
_VERSION = "works on versions, which a program has none of until it returns"

UNHELD = "unheld"
"""Name of the rule table."""


def rules() -> RuleTable[str]:
    """Reasons for PyTorch's operations.

    An operation that replaces storage, as Dynamo captures ``x.data = y``, gives an object another
    shape and memory, which a trace cannot describe.
    """
    table: RuleTable[str] = RuleTable(UNHELD, rule_type=str)
    for name in ("resize_", "resize_as_", "set_"):
        table.set(f"torch.Tensor.{name}", _REPLACED)
    table.set("aten.shallow_copy_data_.default", _REPLACED)  # ``x.data = y`` from 2.14 on
    for name in (
        "autograd.graph.increment_version",
        "ops.prims._tensor_version.default",
        "ops.prims._unsafe_set_version_counter.default",
    ):
        table.set(f"torch.{name}", _VERSION)
    return table


class UnheldError(CaptureError):
    """The captured graph is right but has no trace; it may run as captured."""


def check_held(call: BoundSymbol, table: RuleTable[str]) -> None:
    """Check that a trace can hold ``call``, by ``table``.

    :raises UnheldError: if it cannot, with the reason.
    """
    rule = table.get(call.symbol)
    if rule is not None:
        raise UnheldError(f"{call.symbol} {rule.value}", source=call.source)


def check_nested(graph: torch.fx.GraphModule) -> None:
    """Check that no value in ``graph`` is a nested tensor.

    :raises UnheldError: if one is: a trace has no sizes that differ from row to row.
    """
    for node in graph.graph.nodes:
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor) and example.is_nested:
            # A jagged dimension has a symbol of its own, which is no size of a row.
            reason = "a nested tensor has sizes that differ from row to row"
            raise UnheldError(reason, source=node_source(node))
