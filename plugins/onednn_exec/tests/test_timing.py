"""Stability of two measured times. Clocks are planted: nothing depends on how fast a run is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tj_onednn.timing import BLOCKS, Times, compare, compared


def blocks(*pairs: tuple[float, float]) -> Callable[[], tuple[float, float]]:
    taken: Iterator[tuple[float, float]] = iter(pairs)
    return lambda: next(taken)


def test_two_equal_ratios_in_sequence_are_believed() -> None:
    times = compared(blocks((2.0, 1.0), (2.2, 1.1)))
    assert times == Times(pytest.approx(2.1), pytest.approx(1.05))
    assert times.stable
    assert times.ratio == pytest.approx(0.5)


def test_a_ratio_that_another_program_disturbed_is_measured_again() -> None:
    times = compared(blocks((2.0, 4.0), (2.0, 1.0), (2.0, 1.0)))
    assert times.stable
    assert times.ratio == pytest.approx(0.5)


def test_what_never_agrees_is_not_stable() -> None:
    asked = []

    def block() -> tuple[float, float]:
        asked.append(1)
        return 1.0, 2.0 ** len(asked)

    assert not compared(block).stable
    assert len(asked) == BLOCKS


class Clock:
    """A clock that runs advance by their planted times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs = 0

    def __call__(self) -> float:
        return self.now

    def run(self, seconds: float) -> Callable[[], None]:
        def advance() -> None:
            self.runs += 1
            self.now += seconds

        return advance


@pytest.mark.parametrize("seconds", [1e-6, 1e-3, 0.2])
def test_functions_are_timed_in_turns(seconds: float) -> None:
    clock = Clock()
    times = compare(clock.run(seconds), clock.run(seconds * 0.7), clock)
    assert times.stable
    assert times.theirs == pytest.approx(seconds)
    assert times.ratio == pytest.approx(0.7)


def test_long_runs_are_few_and_short_ones_many() -> None:
    counts = []
    for seconds in (1e-6, 1e-3, 0.2):
        clock = Clock()
        compare(clock.run(seconds), clock.run(seconds), clock)
        counts.append(clock.runs)
    assert counts[0] > 100 > counts[1] > counts[2] == 10


def test_long_runs_that_disagree_are_not_repeated_for_long() -> None:
    clock, factor = Clock(), iter(range(1, 100))
    assert not compare(clock.run(1.0), lambda: clock.run(next(factor))(), clock).stable
    assert clock.runs == 10


def test_what_takes_many_times_as_long_runs_once() -> None:
    clock = Clock()
    times = compare(clock.run(0.01), clock.run(30.0), clock)
    assert times == Times(pytest.approx(0.01), pytest.approx(30.0))
    assert clock.runs == 2
