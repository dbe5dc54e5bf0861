"""Garbage collection while a program is compiled."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import tj_core as tj
from tj_core.compile import collection
from tj_core.extend import hookimpl
from tj_core.internal import collecting_less

PYTHONS = (700, 10, 10)
FEWER = (collection.NEW_OBJECTS, 10, 10)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*PYTHONS)
    yield
    gc.set_threshold(*before)


def test_collections_are_fewer_inside_and_as_before_afterwards() -> None:
    with collecting_less():
        assert gc.get_threshold() == FEWER
        with collecting_less():
            assert gc.get_threshold() == FEWER
        assert gc.get_threshold() == FEWER
    assert gc.get_threshold() == PYTHONS


def test_an_error_restores_them() -> None:
    with pytest.raises(ValueError, match="inside"), collecting_less():
        raise ValueError("inside")
    assert gc.get_threshold() == PYTHONS


@pytest.mark.parametrize("chosen", [(0, 10, 10), (10**6, 3, 3)])
def test_rarer_collections_are_left_alone(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with collecting_less():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_collections_that_are_off_remain_off() -> None:
    gc.disable()
    try:
        with collecting_less():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_set_inside_remains() -> None:
    with collecting_less():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)


def test_the_last_of_several_threads_restores_them() -> None:
    entered, leave = threading.Event(), threading.Event()

    def compile_long() -> None:
        with collecting_less():
            entered.set()
            leave.wait(10)

    with collecting_less():
        thread = threading.Thread(target=compile_long)
        thread.start()
        assert entered.wait(10)
    assert gc.get_threshold() == FEWER
    leave.set()
    thread.join()
    assert gc.get_threshold() == PYTHONS


def test_a_session_is_made_so_and_restores_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Looking:
        __name__ = "looking"

        @hookimpl
        def tj_tags(self) -> tuple[()]:
            seen.append(gc.get_threshold())
            return ()

    tj.Session((Looking(),))
    assert seen == [FEWER]
    assert gc.get_threshold() == PYTHONS
