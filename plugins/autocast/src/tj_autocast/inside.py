"""Operators under autocast whose kernels call other operators.

Autocast passes over operators without a policy, and stays on in their kernels. Fake tensors do not
run those, so no body shows the calls inside. A call with such an operator stays under autocast.
Rule table ``autocast_inside`` says of an operator if it is one.
"""

from __future__ import annotations

from tj_core.extend import BoundSymbol, RuleTable
from tj_torch.internal import has_kernel

__all__ = ["INSIDE", "autocast_inside", "rules"]

INSIDE = "autocast_inside"
"""Name of the rule table."""


def rules() -> RuleTable[bool]:
    """Make the table with PyTorch's own operators of this kind."""
    table: RuleTable[bool] = RuleTable(INSIDE, rule_type=bool)
    # The kernel of the first calls `bmm`, those of the others call `matmul`: both have policies.
    for name in (
        "_trilinear.default",
        "linalg_pinv.atol_rtol_tensor",
        "linalg_pinv.atol_rtol_float",
        "linalg_pinv.default",
        "linalg_pinv.rcond_tensor",
    ):
        table.set(f"aten.{name}", True)
    return table


def autocast_inside(call: BoundSymbol, table: RuleTable[bool], devices: tuple[str, ...]) -> bool:
    """Check that a kernel which ``call`` runs may behave otherwise
    under autocast for ``devices``.
    """
    if call.body is None:
        return False
    return any(_is_one(inner, table, devices) for inner in call.body.calls)


def _is_one(call: BoundSymbol, table: RuleTable[bool], devices: tuple[str, ...]) -> bool:
    rule = table.get(call.symbol)
    if rule is not None:
        return rule.value
    # An extension's kernel may call anything, unless it has a policy, which ends autocast for it.
    library, _, operator = call.symbol.name.removeprefix("ops.").partition(".")
    if call.symbol.namespace != "torch" or not call.symbol.name.startswith("ops."):
        return False
    name, _, overload = operator.rpartition(".")
    qualified = f"{library}::{name}" + ("" if overload == "default" else f".{overload}")
    return not all(has_kernel(qualified, f"Autocast{d.upper()}") for d in devices)
