"""Garbage collection while a program is compiled."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
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


def test_a_session_is_made_without_collections() -> None:
    seen = []

    class Looking:
        __name__ = "looking"

        @hookimpl
        def tj_tags(self) -> tuple[()]:
            seen.append(gc.isenabled())
            return ()

    tj.Session((Looking(),))
    assert seen == [False]
    assert gc.isenabled()


def test_what_is_imported_is_old_and_what_little_is_made_is_not() -> None:
    gc.unfreeze()  # what this repository's conftest.py has frozen
    try:
        with collection.importing():
            few: list[list[int]] = [[]]
        assert any(few[0] is o for o in gc.get_objects(generation=0))
        with collection.importing(), collection.importing():
            many: list[list[int]] = [[] for _ in range(2 * collection.NEW_OBJECTS)]
            assert not gc.isenabled()
        assert gc.isenabled()
        assert len(gc.get_objects(generation=0)) < len(many)
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()


def test_imports_leave_collections_off_that_are_off() -> None:
    gc.disable()
    try:
        with collection.importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_collections_behind_calls_are_short() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    with collection.collecting_young():
        assert gc.get_threshold() == collection.YOUNG
        with collecting_less():  # of a compilation in the block, or in another thread
            assert gc.get_threshold() == collection.YOUNG
        with collection.collecting_young():
            assert gc.get_threshold() == collection.YOUNG
        made = weakref.ref(Cycle())
    assert gc.get_threshold() == PYTHONS
    gc.collect()
    assert made() is None


def test_a_compilation_that_began_before_leaves_thresholds_alone() -> None:
    with contextlib.ExitStack() as behind:
        with collecting_less():
            behind.enter_context(collection.collecting_young())
        assert gc.get_threshold() == collection.YOUNG
    assert gc.get_threshold() == PYTHONS
    with collecting_less(), collection.collecting_young():
        pass
    assert gc.get_threshold() == PYTHONS


def test_what_is_left_is_old() -> None:
    gc.unfreeze()  # what this repository's conftest.py has frozen
    try:
        with collection.collecting_young():
            made: list[list[int]] = [[] for _ in range(3_000)]
        assert gc.get_freeze_count() == 0
        assert len(gc.get_objects(generation=2)) > len(made)
        assert len(gc.get_objects(generation=0)) < len(made)
    finally:
        gc.freeze()


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with collection.collecting_young():
            pass
        # Other threads, such as those of the test runner, may free some of them meanwhile.
        assert before - 100 < gc.get_freeze_count() <= before
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("off", ["disabled", "threshold"])
def test_collections_behind_calls_that_are_off(off: str) -> None:
    if off == "disabled":
        gc.disable()
    else:
        gc.set_threshold(0, 10, 10)
    try:
        before = gc.get_threshold()
        with collection.collecting_young():
            assert gc.get_threshold() == before
        assert gc.get_threshold() == before
    finally:
        gc.enable()
