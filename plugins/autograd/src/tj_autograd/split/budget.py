"""Saving less than the usual split does: which expensive calls run again, so as to fit a budget.

Calls that do not run again by themselves (matrix products, reductions) are allowed to, those first
that take the least time for the bytes they make, until what is saved fits. Each step is a minimum
cut; allowing more never saves more, so the fewest that do are found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tj_core.extend import BoundSymbol

from tj_autograd.split.costs import Costs
from tj_autograd.split.partition import byte_size

__all__ = ["fewest_again", "may_be_freed"]


def may_be_freed(call: BoundSymbol) -> bool:
    """Whether ``call`` may run again at all: it draws no numbers, and has no effect."""
    effects = call.effects
    return not (effects.ordered or effects.mutates or effects.rebinds or call.executor)


def fewest_again(
    forward: Iterable[BoundSymbol],
    costs: Costs,
    fits: Callable[[frozenset[str]], bool],
) -> frozenset[str]:
    """The labels of the fewest calls that ``fits`` needs to run again; all, if that is too few."""
    order = [call.label for call in _by_price(forward, costs)]
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(frozenset(order[:middle])) else (middle + 1, high)
    return frozenset(order[:low])


def _by_price(forward: Iterable[BoundSymbol], costs: Costs) -> Sequence[BoundSymbol]:
    """The calls that may be freed, those first that take least for the bytes that they make."""
    found = [c for c in forward if may_be_freed(c) and c.flat_outs]
    return sorted(found, key=lambda c: costs.seconds(c) / max(1, sum(map(byte_size, c.flat_outs))))
