"""Fences: starts that regions of executors that fuse may not reach across.

A region gathers calls from both sides of a start, so that a reduction begins after all that the
region computes. A fence keeps them apart, at a price: what one side makes for the other is written
to memory and read again. So a start is a fence where that takes less time than what it hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from tj_core.extend import BoundSymbol, makes_views, value_names
from tj_torch.extend import byte_size, multiplies

from tj_distributed.sequence import TORCH_WAIT, starts

if TYPE_CHECKING:
    from tj_distributed.schedule.times import Times

__all__ = ["fenced"]


def fenced(calls: Sequence[BoundSymbol], outputs: object, times: Times) -> set[int]:
    """The starts among ``calls``, which are in order, that should be fences, by index."""
    seconds = [times.seconds(call) for call in calls]
    until = [0.0, *accumulate(seconds)]
    uses = _uses(calls)
    last = _last_reads(calls, value_names(outputs))
    found, border, waiting = set[int](), 0, 0.0
    for i, call in enumerate(calls):
        if not starts(call):
            continue
        waiting += times.collective(call)
        before, after = until[i] - until[border], until[_first_use(call, uses, len(calls))]
        hidden = min(waiting, after - until[i])
        if before > 0 and hidden > _price(calls, border, i, last, times):
            found.add(i)
            border, waiting = i, 0.0
    return found


def _uses(calls: Sequence[BoundSymbol]) -> dict[str, int]:
    """The first call that reads each value."""
    found: dict[str, int] = {}
    for i, call in enumerate(calls):
        for p in call.flat_args:
            found.setdefault(p.name, i)
    return found


def _first_use(call: BoundSymbol, uses: dict[str, int], end: int) -> int:
    """The call that waits for what ``call`` starts; ``end`` if none does."""
    return min((uses.get(p.name, end) for p in call.flat_outs), default=end)


def _last_reads(calls: Sequence[BoundSymbol], returned: set[str]) -> dict[str, int]:
    """The last call that reads each value; none for what is returned, which is written anyway."""
    found = {p.name: i for i, call in enumerate(calls) for p in call.flat_args}
    return {name: i for name, i in found.items() if name not in returned}


def _price(
    calls: Sequence[BoundSymbol], border: int, place: int, last: dict[str, int], times: Times
) -> float:
    """Seconds for one more launch, and for values between ``border`` and ``place`` read later.

    A product is written to memory anyway, as is what a collective returns.
    """
    made = (
        p
        for call in calls[border:place]
        if not (starts(call) or call.symbol.qualname == TORCH_WAIT or makes_views(call))
        if not multiplies(call)
        for p in call.defined()
    )
    crossing = [p for p in made if last.get(p.name, -1) > place]
    speeds = times.speeds(calls[place].flat_args)
    return 2 * sum(map(byte_size, crossing)) / speeds.memory + speeds.launch  # written and read
