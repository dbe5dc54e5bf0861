"""Memory budget: the expensive calls that run again so that what is saved fits.

Calls that are not recomputed by default (matrix products, reductions) are allowed to be, those
first that take the least time per byte of their results, until what is saved fits the budget. Each
step is a minimum cut. To allow more never saves more, so the fewest calls are found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tj_torch.extend import byte_size

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

    from tj_autograd.split.costs import Costs

__all__ = ["fewest_again", "may_be_freed"]


def may_be_freed(call: BoundSymbol, costs: Costs) -> bool:
    """Check that ``call`` can run again: it has no effect, or a rule says that it may."""
    effects = call.effects
    ordered = effects.ordered and costs.repeats(call) is None
    return not (ordered or effects.mutates or effects.rebinds or call.executor)


def fewest_again(
    forward: Iterable[BoundSymbol],
    costs: Costs,
    fits: Callable[[frozenset[str]], bool],
) -> frozenset[str]:
    """Labels of the fewest calls to recompute so that ``fits`` holds; of all calls, if none will
    do.
    """
    order = [call.label for call in _by_price(forward, costs)]
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(frozenset(order[:middle])) else (middle + 1, high)
    return frozenset(order[:low])


def _by_price(forward: Iterable[BoundSymbol], costs: Costs) -> Sequence[BoundSymbol]:
    """Calls that can run again, sorted by seconds per byte of their results."""
    found = [c for c in forward if may_be_freed(c, costs) and c.flat_outs]
    return sorted(found, key=lambda c: costs.seconds(c) / max(1, sum(map(byte_size, c.flat_outs))))
