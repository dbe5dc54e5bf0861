"""Fewer garbage collections while a program is compiled.

A compilation makes many objects that stay alive, and Python looks for cycles after every few
hundred of them; in a process that has imported PyTorch this takes a tenth of the time of a first
call.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["NEW_OBJECTS", "collecting_less"]

NEW_OBJECTS = 50_000
"""Threshold of the youngest generation, in new objects; Python's default is 700 or 2,000."""

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
    if not 0 < found[0] < NEW_OBJECTS:
        return None
    gc.set_threshold(NEW_OBJECTS, *found[1:])
    return found
