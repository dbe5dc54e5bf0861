"""Overlaps: the calls that run between the start of something and the wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_core.analysis.alias import makes_views

if TYPE_CHECKING:
    from tj_core.contract.rules import RuleTable
    from tj_core.contract.starts import Started
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["Overlap", "overlaps"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """The time in which what ``call`` has ``started`` goes on.

    ``after`` is the number of calls that compute before it, ``before`` the label of the first one
    after the wait (``""`` at the end of the program), ``between`` the number of those between
    start and wait. Views, starts and waits do not count, a region counts as one call.
    """

    call: str
    started: Started
    after: int
    before: str
    between: int

    @property
    def hidden(self) -> bool:
        """Test if anything is computed between start and wait."""
        return self.between > 0


def overlaps(
    trace: Trace, rules: RuleTable[Callable[[BoundSymbol], Started | None]]
) -> tuple[Overlap, ...]:
    """The overlap of each call that starts something by ``rules``, in order.

    A call that starts several things at once is waited for where the first of them is.
    """
    starts: dict[int, Started] = {}
    open_: dict[str, int] = {}
    waits: dict[int, int] = {}
    waiting: set[int] = set()
    for place, call in enumerate(trace.calls):
        if call.flat_outs:
            for p in call.flat_args:
                if p.name in open_:
                    waits.setdefault(open_.pop(p.name), place)
                    waiting.add(place)
        rule = rules.of(call)
        started = None if rule is None else rule.value(call)
        if started is not None:
            starts[place] = started
            open_.update((p.name, place) for p in call.flat_outs)
    others = starts.keys() | waiting
    computing = [i for i, c in enumerate(trace.calls) if i not in others and _computes(c)]
    found = []
    for place, started in starts.items():
        end = waits.get(place, len(trace.calls))
        later = next((trace.calls[i].label for i in computing if i > end), "")
        after, until = (sum(i < border for i in computing) for border in (place, end))
        found.append(Overlap(trace.calls[place].label, started, after, later, until - after))
    return tuple(found)


def _computes(call: BoundSymbol) -> bool:
    return bool(call.flat_outs) and not makes_views(call)
