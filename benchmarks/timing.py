"""Interleaved timing: systems take turns within one process, so noise hits all of them alike."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Timing", "interleaved", "table", "with_tuned_allocator"]

ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Settings of the default allocator, which else gives memory back in every step, at random cost."""


def with_tuned_allocator() -> None:
    """Restart the program with `ALLOCATOR` set, unless it is."""
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})


@dataclass(frozen=True)
class Timing:
    """Medians over rounds: seconds per call, ratio to and difference from the baseline."""

    seconds: float
    ratio: float
    extra: float


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    baseline: str,
    number: int,
    rounds: int = 40,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time each of ``calls`` ``number`` times per round, in rotating order, without the GC."""
    for call in calls.values():
        for _ in range(max(10, number // 10)):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            shift = i % len(names)
            for name in names[shift:] + names[:shift]:
                call = calls[name]
                start = clock()
                for _ in range(number):
                    call()
                samples[name].append((clock() - start) / number)
    finally:
        gc.enable()
    return {name: _summary(samples[name], samples[baseline]) for name in names}


def _summary(mine: list[float], base: list[float]) -> Timing:
    pairs = list(zip(mine, base, strict=True))
    return Timing(
        statistics.median(mine),
        statistics.median(a / b for a, b in pairs),
        statistics.median(a - b for a, b in pairs),
    )


def table(title: str, timings: Mapping[str, Timing]) -> str:
    """Microseconds per call, extra over the baseline, ratio."""
    lines = [title]
    for name, t in timings.items():
        lines.append(
            f"  {name:24s} {t.seconds * 1e6:10.2f} us   {t.extra * 1e6:+9.2f} us   x{t.ratio:.3f}"
        )
    return "\n".join(lines)
