"""Expansion of one call, as data: what it returns and does, and its body."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tj_core.extend import Body, Effects, Expanded
from tj_core.internal import NO_EFFECTS

if TYPE_CHECKING:
    from tj_torch.ops.sizes.shape_env import SymbolFacts

__all__ = ["Expansion", "Kind"]

Kind = Literal["COMPOSITE", "KERNEL"]
"""``KERNEL``: recorded below autograd, so gradients must not be taken through the body."""


@dataclass(frozen=True)
class Expansion:
    """Outputs, effects and body of one call; plain data, shared by equal calls.

    ``outputs``, ``effects`` and ``body`` are as in `BoundSymbol` and `Body`, under formal names.
    ``captured``: the body holds a tensor that is no argument, such as one of a closure.

    With symbolic sizes: ``symbols`` are those of the arguments, in order of appearance, ``made``
    the unbacked ones that the call makes. ``guards`` are conditions under which the expansion
    holds; `tj_torch.ops.memo.instance` adapts it to a program.
    """

    outputs: Any
    effects: Effects = NO_EFFECTS
    body: Body | None = None
    kind: Kind = "COMPOSITE"
    captured: bool = False
    symbols: tuple[str, ...] = ()
    made: tuple[SymbolFacts, ...] = ()
    guards: tuple[str, ...] = ()

    @cached_property
    def facts(self) -> Expanded:
        """Outputs, effects and body as the core's record."""
        return Expanded(self.outputs, self.effects, self.body)
