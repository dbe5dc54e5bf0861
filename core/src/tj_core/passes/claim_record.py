"""The record of a call's claim, for reports: its executor, and the executors that declined it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tj_core.ir.symbol import Symbol
    from tj_core.source import Source

__all__ = ["ClaimRecord"]


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """The executor of a call, and the earlier executors that declined it, with reasons.

    ``executor`` is None for a call that was replaced by its body. ``depth`` is the number of bodies
    and regions around the call. ``fused`` is the symbol of the call's fusion region, if any.
    """

    call: str
    symbol: Symbol
    source: Source | None
    executor: str | None
    declined: tuple[tuple[str, str], ...] = ()
    depth: int = 0
    fused: Symbol | None = None
