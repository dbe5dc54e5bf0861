"""Timing of two functions against each other, until the ratio is stable."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Times", "compare", "compared"]

ROUNDS = 4
"""Samples of each function in a block, in turns; a block's time is the least of them."""

BLOCKS = 8
"""Largest number of blocks; after these the ratio is not stable."""

AGREE = 0.04
"""Relative difference below which the ratios of two consecutive blocks agree."""

SAMPLE = 30e-6
"""Shortest sample in seconds: a short function runs several times in one."""

LONG = 0.05
"""Seconds of a run above which a block has two samples: so long a run is disturbed little."""

HOPELESS = 10
"""Ratio of the times of single runs from which, if they are `LONG`, nothing more is measured."""

LIMIT = 2.0
"""Seconds that a comparison may take, unless two blocks alone take more."""

Run = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one run of each function; ``stable`` if two consecutive blocks agreed."""

    theirs: float
    mine: float
    stable: bool = True

    @property
    def ratio(self) -> float:
        """Time of ``mine`` over that of ``theirs``."""
        return self.mine / self.theirs


def compare(theirs: Run, mine: Run, clock: Clock = time.perf_counter) -> Times:
    """Time both functions by ``clock``; each must have run before."""
    first, second = _sample(theirs, 1, clock), _sample(mine, 1, clock)
    if second > max(LONG, HOPELESS * first):
        return Times(first, second)
    number = max(1, round(SAMPLE / first))
    rounds = 2 if first > LONG else ROUNDS

    def block() -> tuple[float, float]:
        pairs = [(_sample(theirs, number, clock), _sample(mine, number, clock))
                 for _ in range(rounds)]  # fmt: skip
        return min(a for a, _ in pairs), min(b for _, b in pairs)

    spent = (first + second) * number * rounds
    return compared(block, min(BLOCKS, max(2, round(LIMIT / spent))))


def compared(block: Callable[[], tuple[float, float]], blocks: int = BLOCKS) -> Times:
    """Call ``block`` until the ratio is stable, at most ``blocks`` times; each call times both
    functions.
    """
    before = Times(*block(), stable=False)
    for _ in range(blocks - 1):
        now = Times(*block(), stable=False)
        if abs(now.ratio - before.ratio) <= AGREE * before.ratio:
            return Times((now.theirs + before.theirs) / 2, (now.mine + before.mine) / 2)
        before = now
    return before


def _sample(run: Run, number: int, clock: Clock) -> float:
    start = clock()
    for _ in range(number):
        run()
    # A coarse clock may show no time at all, by which `compare` divides.
    return max((clock() - start) / number, 1e-9)
