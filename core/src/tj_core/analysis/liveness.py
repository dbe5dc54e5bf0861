"""Liveness: calls that outputs depend on, and the last uses of values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tj_core.ir.proxy import Proxy
from tj_core.ir.tree import leaves

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol

__all__ = [
    "dependent_values",
    "free_values",
    "last_uses",
    "live_calls",
    "live_items",
    "value_names",
]

Item = TypeVar("Item")
Value = TypeVar("Value", bound=Hashable)


def value_names(tree: Any) -> set[str]:
    """The names of the values in a tree of arguments or outputs."""
    return {x.name for x in leaves(tree) if isinstance(x, Proxy)}


def live_items(
    items: Sequence[Item],
    live: set[Value],
    reads: Callable[[Item, set[Value]], Iterable[Value] | None],
) -> list[Item]:
    """The ``items`` that ``live`` values depend on, in order; their reads are added to ``live``.

    ``reads`` returns the reads of an item, given the values that are live after it; None if the
    item is not needed.
    """
    found = []
    for item in reversed(items):
        read = reads(item, live)
        if read is not None:
            found.append(item)
            live.update(read)
    return found[::-1]


def live_calls(
    calls: Sequence[BoundSymbol],
    outputs: Any,
    kept: Callable[[int, BoundSymbol], bool] = lambda _, call: not call.effects.removable,
) -> list[int]:
    """Indices of the calls that ``outputs`` depend on, and of all ``kept`` calls, in order.

    By default calls with effects are kept.
    """

    def reads(at: tuple[int, BoundSymbol], live: set[str]) -> list[str] | None:
        place, call = at
        if kept(place, call) or any(p.name in live for p in call.flat_outs):
            return [p.name for p in call.flat_args]
        return None

    found = live_items(list(enumerate(calls)), value_names(outputs), reads)
    return [place for place, _ in found]


def last_uses(
    calls: Sequence[BoundSymbol], outputs: Any, of: Callable[[str], str] = lambda name: name
) -> list[list[str]]:
    """For each call, the names that no later call or output reads, in order of appearance.

    ``of`` maps the name of a value to the name that counts, such as its storage's.
    """
    live = set(map(of, value_names(outputs)))
    found: list[list[str]] = []
    for call in reversed(calls):
        here = dict.fromkeys(of(p.name) for p in (*call.flat_args, *call.flat_outs))
        found.append([name for name in here if name not in live])
        live.update(here)
    return found[::-1]


def dependent_values(
    calls: Iterable[BoundSymbol],
    names: Iterable[str],
    passes: Callable[[Proxy], bool] = lambda p: True,
) -> set[str]:
    """The names of the values that depend on those called ``names``, these included.

    A call's outputs depend on its arguments, if ``passes`` accepts the output.
    """
    found = set(names)
    for call in calls:
        if any(p.name in found for p in call.flat_args):
            found.update(p.name for p in call.flat_outs if passes(p))
    return found


def free_values(
    calls: Iterable[BoundSymbol], outputs: Any = (), known: Iterable[str] = ()
) -> list[Proxy]:
    """The values that ``calls`` and ``outputs`` use but do not define, in order of first use.

    Names in ``known`` are left out.
    """
    made = set(known)
    found: dict[str, Proxy] = {}
    steps = [(call.flat_args, call.flat_outs) for call in calls]
    for used, results in (*steps, (outputs, ())):
        values = (p for p in leaves(used) if isinstance(p, Proxy))
        found.update((p.name, p) for p in values if p.name not in made)
        made.update(p.name for p in results)
    return list(found.values())
