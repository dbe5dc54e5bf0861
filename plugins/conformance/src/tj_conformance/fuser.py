"""A fuser of the tests' own: regions of PyTorch's operators run as the text of their names.

It takes what a fuser with a compiler takes, and compiles nothing, so thousands of programs can be
fused: ``tj.Session(["conformance", ...], overrides={"conformance": {"fuse": True}})``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tj_core.extend import (
    BoundSymbol,
    Claim,
    Decline,
    Executor,
    Fusion,
    NumberProxy,
    Proxy,
    RuleTable,
    TensorProxy,
    sizes_are_bound,
)
from tj_core.testing.fusing import as_text
from tj_torch.extend import is_on, resolve

__all__ = ["text_executor"]


def text_executor() -> Executor:
    """Make the executor, which fuses every call that it can and claims none."""
    claims: RuleTable[Claim] = RuleTable("claim")
    fusion = Fusion(
        can_fuse,
        as_text,
        minimum=1,
        hosts=True,
        check=sizes_are_bound,
        restore=lambda region, _: as_text(region),
        fingerprint=lambda: "the text of names",
    )
    return Executor("text", claims, fusion=fusion)


def can_fuse(call: BoundSymbol) -> bool | Decline:
    """Decide if ``call`` is a pure call of an ATen operator on plain tensors."""
    if call.symbol.namespace != "aten":
        return Decline("fuses ATen operators")
    try:
        operator = resolve(call.symbol)
    except LookupError:
        return Decline("PyTorch has no such operator")
    if torch.Tag.dynamic_output_shape in getattr(operator, "tags", ()):
        return Decline("the shape of its result depends on data")
    if is_on(call.context):
        return Decline("it runs under autocast")
    if not any(isinstance(p, TensorProxy) for p in call.flat_outs):
        return Decline("it returns no tensor")
    return _fit((*call.flat_args, *call.flat_outs))


def _fit(values: Sequence[Proxy]) -> bool | Decline:
    for p in values:
        if isinstance(p, TensorProxy):
            if p.subclass is not None or p.layout != "strided" or p.flags:
                return Decline(f"{p.name} is no plain tensor")
        elif not isinstance(p, NumberProxy) or p.hint is None:
            return Decline(f"{p.name} is no known number")
    return True
