"""Two functions timed against each other, until the ratio is stable."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Times", "compare", "compared"]

ROUNDS = 4
"""Samples of each function in a block, in turns; the least is the block's."""

BLOCKS = 8
"""Blocks at most; then the ratio is not stable."""

AGREE = 0.04
"""By how much the ratios of two blocks in sequence may differ, for both to be believed."""

SAMPLE = 30e-6
"""Seconds that a sample takes at least: a short function runs several times."""

LONG = 0.05
"""Seconds of a run from which on two samples are a block: little disturbs so long a run."""

LIMIT = 2.0
"""Seconds that a comparison may take, if two blocks do not take more."""

Run = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one run of each; ``stable`` if the ratio was the same twice in sequence."""

    theirs: float
    mine: float
    stable: bool = True

    @property
    def ratio(self) -> float:
        """The second's time over the first's."""
        return self.mine / self.theirs


def compare(theirs: Run, mine: Run, clock: Clock = time.perf_counter) -> Times:
    """The times of the two by ``clock``; each has run before."""
    first = _sample(theirs, 1, clock)
    number = max(1, round(SAMPLE / first))
    rounds = 2 if first > LONG else ROUNDS

    def block() -> tuple[float, float]:
        pairs = [(_sample(theirs, number, clock), _sample(mine, number, clock))
                 for _ in range(rounds)]  # fmt: skip
        return min(a for a, _ in pairs), min(b for _, b in pairs)

    spent = 2 * first * number * rounds
    return compared(block, min(BLOCKS, max(2, round(LIMIT / spent))))


def compared(block: Callable[[], tuple[float, float]], blocks: int = BLOCKS) -> Times:
    """The times of the two, which each ``block`` measures once more, when they are stable."""
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
    return max((clock() - start) / number, 1e-9)
