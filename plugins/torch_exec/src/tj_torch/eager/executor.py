"""Eager executor, the fallback: runs every call undecomposed, as PyTorch does."""

from __future__ import annotations

from tj_core.extend import BoundSymbol, Claim, Decline, Executor, RuleTable

from tj_torch.ops.facts import wiring
from tj_torch.ops.naming.resolve import resolve

__all__ = ["eager_executor"]


def _whole(call: BoundSymbol) -> bool | Decline:
    """Claim calls whose symbol names a function; an edited call runs as its body."""
    if call.symbol.edited:
        return Decline("the call's body was edited; its calls run instead")
    try:
        resolve(call.symbol)
    except LookupError:
        return Decline("PyTorch has no such operation; its body runs instead")
    return True


def eager_executor() -> Executor:
    """Make the eager executor."""
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("*", Claim(None, _whole))
    for rule in wiring.rules():
        if rule.value.plain:
            claims.set(rule.key, Claim(None, _whole, shares_subprograms=True))
    return Executor("torch", claims, fallback=True)
