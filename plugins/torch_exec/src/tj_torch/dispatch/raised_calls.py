"""Calls that have raised: the next ones alike run in eager at once, and raise again there."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from tj_torch.torch_private.runtime import pytree

__all__ = ["RaisedCalls"]

Note = Callable[[Exception], None]

MOST = 64
"""Most calls that are known; then all are forgotten."""

_VALUES = (int, float, complex, str, bytes, type(None))


class RaisedCalls:
    """Calls whose programs were found to raise when they were captured, and did.

    To capture such a program again would take long, and raise the same. If eager raises nothing
    this time, as the program's state has changed, the call is forgotten, and the next is captured.
    """

    def __init__(self) -> None:
        self._notes: dict[Hashable, Note] = {}

    def add(self, values: Any, note: Note) -> None:
        """Remember a call with arguments ``values``; ``note`` may add a note to its errors."""
        if len(self._notes) >= MOST:
            self._notes.clear()
        self._notes[_like(values)] = note

    def __bool__(self) -> bool:
        return bool(self._notes)

    def running(self, values: Any, original: Callable[..., Any]) -> Callable[..., Any] | None:
        """``original`` for a call with arguments ``values`` like one that raised; else None."""
        key = _like(values)
        note = self._notes.get(key)
        if note is None:
            return None

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                note(error)
                raise
            self._notes.pop(key, None)
            return result

        return run


def _like(values: Any) -> Hashable:
    """A key of arguments: of tensors what programs are compiled for, of numbers and texts all."""
    leaves, structure = pytree.tree_flatten(values)
    return str(structure), *map(_key, leaves)


def _key(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        strided = leaf.layout is torch.strided
        strides = leaf.stride() if strided else ()
        return type(leaf), leaf.shape, strides, leaf.dtype, leaf.device, leaf.requires_grad
    return (type(leaf), leaf) if isinstance(leaf, _VALUES) else id(leaf)
