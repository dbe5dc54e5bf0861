"""The thread that compiles behind calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tj_core.compile.worker import Worker


class Owner:
    """An object that work belongs to."""


@pytest.fixture
def interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_other_threads_get_their_turn_soon(interval: float) -> None:
    """Python's 5 ms would pass at each operation of a call."""
    worker, owner, seen = Worker(), Owner(), list[float]()
    for _ in range(2):
        worker.put(owner, lambda owner: seen.append(sys.getswitchinterval()))
        assert worker.wait(60)
        assert sys.getswitchinterval() == pytest.approx(interval)
    assert seen == pytest.approx([2e-5, 2e-5])


def test_an_interval_that_the_program_sets_stays(interval: float) -> None:
    worker, owner = Worker(), Owner()
    worker.put(owner, lambda owner: sys.setswitchinterval(0.002))
    assert worker.wait(60)
    assert sys.getswitchinterval() == pytest.approx(0.002)
    sys.setswitchinterval(1e-5)
    worker.put(owner, lambda owner: None)
    assert worker.wait(60)
    assert sys.getswitchinterval() == pytest.approx(1e-5)
