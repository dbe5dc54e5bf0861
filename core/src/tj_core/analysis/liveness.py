"""Liveness: which calls somebody needs, and after which call a value is used no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tj_core.ir.proxy import Proxy
from tj_core.ir.trace import BoundSymbol
from tj_core.ir.tree import leaves

__all__ = ["last_uses", "live_calls", "value_names"]


def value_names(tree: Any) -> set[str]:
    """The names of the values in a tree of arguments or outputs."""
    return {x.name for x in leaves(tree) if isinstance(x, Proxy)}


def live_calls(
    calls: Sequence[BoundSymbol],
    outputs: Any,
    kept: Callable[[int, BoundSymbol], bool] = lambda _, call: not call.effects.removable,
) -> list[int]:
    """The places of the calls that ``outputs`` depend on, and of those ``kept`` whatever is used.

    In order. By default calls with effects are kept.
    """
    live = value_names(outputs)
    found = []
    for place in reversed(range(len(calls))):
        call = calls[place]
        if kept(place, call) or any(p.name in live for p in call.flat_outs):
            found.append(place)
            live.update(p.name for p in call.flat_args)
    return found[::-1]


def last_uses(calls: Sequence[BoundSymbol], outputs: Any) -> list[list[str]]:
    """For each call, the names that nothing after it reads, in order of appearance."""
    live = value_names(outputs)
    found: list[list[str]] = []
    for call in reversed(calls):
        here = dict.fromkeys(p.name for p in (*call.flat_args, *call.flat_outs))
        found.append([name for name in here if name not in live])
        live.update(here)
    return found[::-1]
