"""Repeated structure: find the layers of a model in a flat list of calls.

Calls become tokens, equal for calls that differ only in the names of values. The longest stretch in
which a sequence of tokens repeats itself is cut into its periods, at the places where the fewest
values cross. The calls before and after the stretch are then searched in the same way. A stretch of
calls in program order is convex, so every part can be a region, and equal parts are compiled once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tj_core.ir.proxy import NumberProxy

if TYPE_CHECKING:
    from tj_core.ir.proxy import Proxy
    from tj_core.ir.trace import BoundSymbol

__all__ = ["parts"]

SHORTEST = 8
"""Number of calls in the shortest period that is worth a region of its own."""

LEAST_GAIN = 24
"""Least number of calls that need not be compiled again; also at least a tenth of all."""

CANDIDATES = 32
"""Number of periods to try: the most frequent distances of equal stretches."""


def parts(
    calls: Sequence[BoundSymbol],
    token: Callable[[BoundSymbol], str],
    views: Mapping[str, BoundSymbol],
) -> list[Sequence[BoundSymbol]]:
    """``calls`` cut so that repeated structure stands in parts of its own.

    ``views`` are the calls that make views of one value each, by name of view: who reads a view
    reads that value.
    """
    if len(calls) < 2 * SHORTEST:
        return [calls]
    known: dict[str, int] = {}
    tokens = [known.setdefault(token(call), len(known)) for call in calls]
    cuts = sorted(_cuts(tokens, 0, len(calls), _Crossing(calls, views)))
    return [calls[a:b] for a, b in pairwise([0, *cuts, len(calls)])]


class _Crossing:
    """The number of values made after a place and needed behind a cut."""

    def __init__(self, calls: Sequence[BoundSymbol], views: Mapping[str, BoundSymbol]) -> None:
        self.made = {p.name: i for i, call in enumerate(calls) for p in call.defined()}
        self.last: dict[str, int] = {}
        for i, call in enumerate(calls):
            read = (_viewed(p, views).name for p in call.flat_args)
            self.last.update((name, i) for name in read if name in self.made)

    def count(self, start: int, cut: int) -> int:
        return sum(start <= self.made[name] < cut <= last for name, last in self.last.items())


def _viewed(p: Proxy, views: Mapping[str, BoundSymbol]) -> Proxy:
    """The value that ``p`` is a view of, by one of ``views`` or several; else ``p``."""
    while p.name in views:
        p = next(a for a in views[p.name].flat_args if not isinstance(a, NumberProxy))
    return p


def _cuts(tokens: list[int], low: int, high: int, crossing: _Crossing) -> list[int]:
    """The indices at which to cut ``tokens[low:high]``."""
    found = _longest(tokens[low:high])
    if found is None or found.gain < max(LEAST_GAIN, len(tokens) // 10):
        return []
    start, times = _phase(found, low, crossing)
    ends = [start + i * found.period for i in range(times + 1)]
    inner = [cut for cut in ends if low < cut < high]
    before = _cuts(tokens, low, start, crossing) if start > low else []
    after = _cuts(tokens, ends[-1], high, crossing) if ends[-1] < high else []
    return [*before, *inner, *after]


class _Repeat:
    """``length`` tokens from ``start`` on, each of which recurs a ``period`` later."""

    __slots__ = ("length", "period", "start")

    def __init__(self, period: int, start: int, length: int) -> None:
        self.period, self.start, self.length = period, start, length

    @property
    def gain(self) -> int:
        return self.length // self.period * self.period


def _longest(tokens: list[int]) -> _Repeat | None:
    """The repeat that leaves the fewest tokens to compile."""
    found = [r for period in _periods(tokens) if (r := _run(tokens, period)).length >= period]
    # Of equal gains the shortest period, of which the least has to be compiled.
    return max(found, key=lambda r: (r.gain, -r.period), default=None)


def _periods(tokens: list[int]) -> list[int]:
    """The usual distances of equal stretches, in multiples long enough to be worth a region."""
    last: dict[tuple[int, ...], int] = {}
    distances: Counter[int] = Counter()
    for place in range(len(tokens) - SHORTEST + 1):
        stretch = tuple(tokens[place : place + SHORTEST])
        if stretch in last:
            distances[place - last[stretch]] += 1
        last[stretch] = place
    usual = [distance for distance, _ in distances.most_common(CANDIDATES)]
    fitting = {d * -(-SHORTEST // d) for d in usual}  # the first multiple that is long enough
    return sorted(d for d in fitting if d <= len(tokens) // 2)


def _run(tokens: list[int], period: int) -> _Repeat:
    """The longest stretch in which every token recurs a ``period`` later."""
    best, start = _Repeat(period, 0, 0), 0
    same = [a == b for a, b in zip(tokens, tokens[period:], strict=False)]
    for place, equal in enumerate([*same, False]):
        if not equal:
            if place - start > best.length:
                best = _Repeat(period, start, place - start)
            start = place + 1
    return best


def _phase(found: _Repeat, low: int, crossing: _Crossing) -> tuple[int, int]:
    """Start of the first period with the fewest values across the cuts, and number of periods."""
    choices = []
    for offset in range(found.period):
        times = (found.length + found.period - offset) // found.period
        if times < max(2, found.length // found.period):
            break
        start = low + found.start + offset
        choices.append((crossing.count(low, start + found.period), -times, start))
    _, times, start = min(choices)
    return start, -times
