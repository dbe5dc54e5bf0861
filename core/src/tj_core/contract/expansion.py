"""Expansion: the outputs, effects and body of a call, derived by a rule.

Table ``expand`` maps a symbol to a function from a call, of which only symbol, arguments and
context matter, to its `Expanded`. The table is the one source of metadata: for new calls, for
calls whose inputs changed, and for the verifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tj_core.ir.effects import NO_EFFECTS, Effects
from tj_core.ir.proxy import Proxy
from tj_core.ir.trace import Body, BoundSymbol
from tj_core.ir.tree import map_tree

__all__ = ["Expand", "Expanded", "bind_outputs"]


@dataclass(frozen=True, slots=True)
class Expanded:
    """The facts of a call. Proxies in ``outputs`` have formal names (``_0``), see `Body`."""

    outputs: Any
    effects: Effects = NO_EFFECTS
    body: Body | None = None


Expand = Callable[[BoundSymbol], Expanded]


def bind_outputs(call: BoundSymbol, expanded: Expanded, name: Callable[[int], str]) -> BoundSymbol:
    """``call`` with the expanded facts; ``name`` gives the name of the i-th output proxy."""
    count = iter(range(1 << 30))
    outputs = map_tree(lambda p: p.replace(name=name(next(count))), expanded.outputs, Proxy)
    effects = expanded.effects
    if effects.rebinds:
        args = call.flat_args  # the same values afterwards: names and tags stay
        effects = replace(
            effects,
            rebinds=tuple(
                (i, p.replace(name=args[i].name, tags=args[i].tags)) for i, p in effects.rebinds
            ),
        )
    return call.replace(outputs=outputs, effects=effects, body=expanded.body)
