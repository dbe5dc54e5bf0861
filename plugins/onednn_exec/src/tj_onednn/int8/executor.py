"""The executor of layers in int8: weights are rounded once, and again after a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_core.extend import BoundSymbol, Claim, Decline, Executor, Packaging, RuleTable

from tj_onednn.int8 import kernels
from tj_onednn.int8.cache import Cache, kept
from tj_onednn.int8.layers import DECLINED, LAYERS, saturates
from tj_onednn.names import INT8, lost

__all__ = ["int8_executor"]


def int8_executor() -> Executor:
    """Make the executor."""
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set(kernels.QUANTISE, Claim(kept, state=Cache().state))
    claims.set(kernels.DYNAMIC, Claim(kernels.dynamic, _unless_declined))
    # Not traceable: Inductor has a lowering of the product, which fails on a vector of ones.
    claims.set(kernels.WEIGHTS, Claim(kernels.weights_only))
    for name in LAYERS:
        claims.set(name, Claim(_never, _reason))
    return Executor(
        "onednn_int8",
        claims,
        # A program that is kept on disk may be found by another machine.
        fingerprint=lambda: str(_unavailable()),
        packaging=Packaging(options={"int8": ["*"]}, unavailable=_unavailable),
    )


def _unavailable() -> str | None:
    return lost(INT8) or saturates()


def _unless_declined(call: BoundSymbol) -> bool | Decline:
    return _reason(call) if DECLINED in call.tags else True


_never: Callable[..., Any] = kernels.dynamic
"""The implementation of layers that the transform has left as they are: no check takes one."""


def _reason(call: BoundSymbol) -> Decline:
    """The reason that the transform has found, for `tj.explain`."""
    return Decline(str(call.tags.get(DECLINED, "the transform onednn-int8 has not looked at it")))
