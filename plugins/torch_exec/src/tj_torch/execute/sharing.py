"""Which tensors a functional program can be given: others are for the program as written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["once", "unless_shared"]


def unless_shared(
    run: Callable[..., Any],
    tensors: Sequence[int],
    written: Sequence[int],
    otherwise: Callable[[], Callable[..., Any]],
    visible: Sequence[int] = (),
) -> Callable[..., Any]:
    """``run``, or what ``otherwise`` makes where a written argument shares storage with another.

    ``tensors`` are the places of the arguments that are tensors, ``written`` those of the ones
    that ``run`` writes, ``visible`` those of which autograd sees that: if one is, or views, a
    leaf that requires a gradient, the program as written raises.
    """
    places = {place: i for i, place in enumerate(tensors)}
    indices = [places[place] for place in written]

    def computation(*args: Any) -> Any:
        for place in visible:
            tensor = args[place]._base if args[place]._is_view() else args[place]
            if tensor.is_leaf and tensor.requires_grad:
                return otherwise()(*args)
        storages = [args[place].untyped_storage()._cdata for place in tensors]
        if len(set(storages)) < len(storages):
            counts = Counter(storages)
            if any(counts[storages[i]] > 1 for i in indices):
                return otherwise()(*args)
        return run(*args)

    return computation


def once(make: Callable[[], Callable[..., Any]]) -> Callable[[], Callable[..., Any]]:
    """``make``, called when it is first needed, by one thread."""
    made: list[Callable[..., Any]] = []
    lock = threading.Lock()

    def get() -> Callable[..., Any]:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    return get
