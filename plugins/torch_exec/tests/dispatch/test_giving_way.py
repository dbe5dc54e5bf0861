"""A thread that compiles behind calls gives way to those that are being answered."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Stage, Transform
from tj_core.internal import worker
from tj_torch.dispatch import dynamo
from tj_torch.runtime import giving_way as way
from tj_torch.runtime.beside import beside
from tj_torch.runtime.compile_lock import compile_lock
from tj_torch.runtime.giving_way import answering, giving_way


class Work:
    """A thread that calls a function again and again inside of ``context``; ``steps`` counts."""

    def __init__(self, context: Callable[[], Any] = giving_way) -> None:
        self.steps = 0
        self.ended = False
        self.context = context
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self.context():
            while not self.ended:
                self.step()

    def step(self) -> None:
        self.steps += 1

    def goes_on(self) -> bool:
        before, until = self.steps, time.monotonic() + 60
        while self.steps < before + 1000 and time.monotonic() < until:
            time.sleep(0.01)
        return self.steps >= before + 1000

    def steps_in(self, seconds: float) -> int:
        before = self.steps
        time.sleep(seconds)
        return self.steps - before


@pytest.fixture
def work() -> Iterator[Work]:
    found = Work()
    found.thread.start()
    yield found
    found.ended = True
    found.thread.join()


def test_a_thread_waits_for_a_call(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "SHARE", 1e-3)  # it would wait for minutes
    monkeypatch.setattr(way, "LONGEST", 60.0)
    assert work.goes_on()
    with answering():
        time.sleep(0.1)
        with answering():
            assert work.steps_in(0.1) == 0
        assert work.steps_in(0.1) == 0
    assert work.goes_on()


def test_a_call_without_end_does_not_stop_it(work: Work) -> None:
    with answering():
        assert work.goes_on()


def test_a_call_that_waits_for_the_compilation_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(way, "SHARE", 1e-5)  # it would wait for a minute
    monkeypatch.setattr(way, "LONGEST", 60.0)
    there, started, times = threading.Event(), threading.Event(), list[float]()

    def step() -> float:
        return time.perf_counter()

    def compile_beside() -> None:
        with compile_lock(), beside():
            there.set()
            started.wait(60)
            began, last = time.perf_counter(), time.thread_time() + 0.02
            while time.thread_time() < last:
                step()
            times.append(time.perf_counter() - began)

    thread = threading.Thread(target=compile_beside)
    thread.start()
    assert there.wait(60)
    threading.Timer(0.1, started.set).start()
    with answering(), compile_lock() as waited:
        assert waited
    thread.join()
    assert times[0] < 30, "the thread has waited for a call that waits for it"


def test_a_profiler_keeps_its_place() -> None:
    seen = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        seen.append(event)

    sys.setprofile(profile)
    try:
        with giving_way():
            assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert seen
    with giving_way():
        assert sys.getprofile() is not None
    assert sys.getprofile() is None


def test_programs_answer_beside_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a call with a program runs before the thread that compiles for other sizes."""
    there, on = threading.Event(), threading.Event()
    on.set()

    def stop(trace: Any, context: Any) -> Any:
        there.set()
        assert on.wait(60)
        return trace

    stopping = Transform("stopping", stop, Stage.ACQUIRED)
    jitted = tj.jit(lambda x: x.sin() + 1, on_miss="eager", dynamic=False, transforms=[stopping])
    x, y = torch.rand(3), torch.rand(4)
    jitted(x)
    assert worker().wait(120)
    answered = []
    own = dynamo.answering

    def noting() -> Any:
        answered.append(1)
        return own()

    monkeypatch.setattr(dynamo, "answering", noting)
    torch.testing.assert_close(jitted(x), x.sin() + 1)
    assert not answered
    there.clear()
    on.clear()
    jitted(y)
    assert there.wait(120)
    torch.testing.assert_close(jitted(x), x.sin() + 1)
    assert answered == [1]
    on.set()
    assert worker().wait(120)
    for value in (x, y):
        torch.testing.assert_close(jitted(value), value.sin() + 1)
    assert answered == [1]
    assert tj.stats(jitted).hits == 4
