"""Fewer garbage collections while a program is compiled, and short ones if that is behind calls.

A compilation makes many objects that stay alive, and Python looks for cycles after every few
hundred of them; in a process that has imported PyTorch this takes a tenth of the time of a first
call.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["NEW_OBJECTS", "YOUNG", "collecting_less", "collecting_young", "importing"]

NEW_OBJECTS = 50_000
"""Threshold of the youngest generation, in new objects; Python's default is 700 or 2,000."""

YOUNG = (5_000, 1_000_000, 1_000_000)
"""Thresholds of a compilation behind calls: a collection takes a millisecond, and stays young."""

# Python's thresholds are those of the process, and so is the count of compilations.
_lock = threading.Lock()
_inside = 0  # compilations, in all threads
_before: tuple[int, int, int] | None = None  # the thresholds that the last of them restores


@contextlib.contextmanager
def collecting_less() -> Iterator[None]:
    """Collect garbage after 50,000 new objects inside of the block, also in other threads.

    Blocks nest. Collections that are switched off, or rarer already, are left alone, and so are
    thresholds that other code sets inside of the block.
    """
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = _raise_threshold()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _before is not None:
                if gc.get_threshold() == (NEW_OBJECTS, *_before[1:]):
                    gc.set_threshold(*_before)
                _before = None


def _raise_threshold() -> tuple[int, int, int] | None:
    """Raise the threshold and return the old ones; None if it is higher already, or 0 (never)."""
    found = gc.get_threshold()
    if not 0 < found[0] < NEW_OBJECTS or _are_young(found):
        return None
    gc.set_threshold(NEW_OBJECTS, *found[1:])
    return found


@contextlib.contextmanager
def collecting_young() -> Iterator[None]:
    """Collect only what is new inside of the block, in all threads; for one that serves no call.

    A collection stops all threads: one of 50,000 new objects for 20 ms, one of all objects of a
    process that has imported PyTorch for 70 ms. At the end all objects count as old without being
    looked at, as after a full collection. Collections that are switched off are left alone, and so
    are thresholds that other code sets inside of the block.
    """
    before = _set_young()
    try:
        yield
    finally:
        if before is not None and _are_young(gc.get_threshold()):
            _grow_old()
            gc.set_threshold(*before)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage inside of the block, in all threads, and count many new objects as old.

    Modules stay, and collections that look at each of their objects take a tenth of the time of an
    import. Collections that are switched off are left alone.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > NEW_OBJECTS:  # else nothing was imported
            _grow_old()
        gc.enable()


def _grow_old() -> None:
    """Count all objects as old without looking at them, as after a full collection."""
    if gc.get_freeze_count() == 0:  # else the program has frozen some, for good
        gc.freeze()
        gc.unfreeze()


def _are_young(thresholds: tuple[int, int, int]) -> bool:
    """Test for the thresholds of `collecting_young`; Python 3.14 does not keep the last one."""
    return thresholds[:2] == YOUNG[:2]


def _set_young() -> tuple[int, int, int] | None:
    """Set the thresholds; return those to restore, None if collections are switched off."""
    global _before
    with _lock:
        found = gc.get_threshold()
        if not gc.isenabled() or found[0] == 0 or _are_young(found):
            return None
        # A block of `collecting_less` does not restore thresholds that are others at its end.
        before = found if _before is None else _before
        _before = None
        gc.set_threshold(*YOUNG)
        return before
