"""Detect and undo writes to users' state by the handlers of tensor subclasses.

``__torch_dispatch__`` and ``__torch_function__`` run at capture, on fake tensors, and not when the
compiled program runs. A handler that counts, prints, or appends to a list, must run once per
operation: its program is not compiled, and writes of the capture are undone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.fakes.user_state import Search, kinds
from tj_torch.runtime.beside import is_beside
from tj_torch.runtime.subclasses import is_wrapper
from tj_torch.torch_private import ops as private

if TYPE_CHECKING:
    from tj_torch.ops.fakes.places import Place

__all__ = ["changed_state", "same_tensors", "untouched"]

_WINDOWS: list[list[Place]] = []
"""States at the start of running captures, outermost first; guarded by Dynamo's lock."""


@contextlib.contextmanager
def untouched(given: Iterable[Any] = ()) -> Iterator[None]:
    """Restore, at exit, the state that handlers write, and that of tensors among ``given``.

    Must be entered under Dynamo's lock. Beside the program it is the program that writes, and
    nothing is restored; `changed_state` tells of writes all the same.
    """
    search = Search()
    for kind in kinds():
        search.value(kind, kind.__qualname__)
    _look_at(search, given)
    _WINDOWS.append(search.places)
    try:
        with private.symbols_for_placements(), private.same_masks():
            yield
    finally:
        _WINDOWS.pop()
        for place in () if is_beside() else search.places:
            place.restore()


def changed_state() -> str | None:
    """Name of a variable that handlers have written since the running capture began, or None."""
    return _first_changed(place for places in _WINDOWS for place in places)


@contextlib.contextmanager
def same_tensors(given: Iterable[torch.Tensor]) -> Iterator[None]:
    """Check that attributes of wrapper subclasses in ``given`` are unchanged at exit.

    :raises CannotExpand: naming the attribute that was written; the write is undone.
    """
    search = Search()
    _look_at(search, given)
    try:
        with private.symbols_for_placements(), private.same_masks() as masked:
            yield
            if masked():
                raise CannotExpand("a placement keeps a mask for the next call")
        if name := _first_changed(search.places):
            raise CannotExpand(f"operations on a tensor subclass change {name}")
    finally:
        for place in search.places:
            place.restore()


def _look_at(search: Search, given: Iterable[Any]) -> None:
    for value in given:
        if isinstance(value, torch.Tensor) and is_wrapper(value):
            search.tensor(value)


def _first_changed(places: Iterable[Place]) -> str | None:
    return next(filter(None, (place.changed() for place in places)), None)
