"""The eager executor: every call as PyTorch runs it. Asked last, it takes calls whole."""

from __future__ import annotations

from tj_core.extend import BoundSymbol, Claim, Decline, Executor, RuleTable

from tj_torch.ops.names import resolve

__all__ = ["SHARING", "eager_executor"]


def _whole(call: BoundSymbol) -> bool | Decline:
    """Eager runs what has a Python meaning; an edited call runs as its body."""
    if call.symbol.edited:
        return Decline("the call's body was edited; its calls run instead")
    try:
        resolve(call.symbol)
    except LookupError:
        return Decline("PyTorch has no such operation; its body runs instead")
    return True


SHARING = (
    "torch.ops.higher_order.cond",
    "torch.ops.higher_order.map_impl",
    "torch.ops.higher_order.scan",
    "torch.ops.higher_order.while_loop",
    "torch.ops.higher_order.wrap",
    "torch.ops.higher_order.wrap_with_autocast",
    "torch.ops.higher_order.wrap_with_set_grad_enabled",
    "torch.utils.checkpoint.checkpoint",
    "tj.invoke",
)
"""Operations that, where no gradient is wanted, do nothing with their regions but call them.

Others see the regions' operations: ``flex_attention`` vectorises its regions over the scores.
"""


def eager_executor() -> Executor:
    """The record of the eager executor."""
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("*", Claim(None, _whole))
    for name in SHARING:
        claims.set(name, Claim(None, _whole, shares_regions=True))
    return Executor("torch", claims, fallback=True)
