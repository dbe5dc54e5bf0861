"""Tags that ask in vain: calls whose results are saved although they are to run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tj_core.extend import BoundSymbol, Change, Proxy

from tj_autograd.joint.repeatable import REPEATABLE, WITH_ARGUMENT, together
from tj_autograd.split.partition import storages

if TYPE_CHECKING:
    from tj_autograd.split.costs import Costs

__all__ = ["unheeded"]

TAG = "RECOMPUTE"


def unheeded(
    forward: Sequence[BoundSymbol], saved: Sequence[Proxy], costs: Costs
) -> Iterator[Change]:
    """Yield the calls of ``forward`` that are tagged to run again while ``saved`` has their result.

    Each with the reason. A saved view keeps all of what it views.
    """
    bases = storages(forward)
    kept = {bases[p.name].name if p.name in bases else p.name for p in saved}
    units = together(forward, costs.repeats)
    maker = {p.name: call for call in forward for p in call.flat_outs}
    for call in forward:
        tagged = TAG in call.tags or any(TAG in p.tags for p in call.flat_outs)
        if not tagged or kept.isdisjoint(p.name for p in call.flat_outs):
            continue
        if any("SAVE" in p.tags for p in call.flat_outs) or call.label in units:
            continue
        if call.effects.ordered and "CHECKPOINT" not in call.tags:
            why = _order(call, maker, costs)
            yield Change(call.label, "autograd", TAG, declined=(("autograd", why),))


def _order(call: BoundSymbol, maker: dict[str, BoundSymbol], costs: Costs) -> str:
    first = call
    if costs.repeats(call) == WITH_ARGUMENT:
        first = next((maker[p.name] for p in call.flat_args if p.name in maker), call)
    order = ", ".join(first.effects.ordered)
    return (
        f"saved: {first.symbol} keeps its order ({order}), and no rule of table "
        f"{REPEATABLE!r} says that it may run again"
    )
