"""Which tensors a functional program can be given: others are for the program as written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["unless_shared"]


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
    leaf that requires a gradient, the program as written raises. ``otherwise`` is called once,
    when it is first needed.
    """
    places = {place: i for i, place in enumerate(tensors)}
    indices = [places[place] for place in written]
    made: list[Callable[..., Any]] = []
    lock = threading.Lock()

    def other() -> Callable[..., Any]:
        with lock:
            if not made:
                made.append(otherwise())
        return made[0]

    def computation(*args: Any) -> Any:
        for place in visible:
            tensor = args[place]._base if args[place]._is_view() else args[place]
            if tensor.is_leaf and tensor.requires_grad:
                return other()(*args)
        storages = [_storage(args[place]) for place in tensors]
        if len(set(storages)) < len(storages):
            counts = Counter(storages)
            if any(counts[storages[i]] > 1 for i in indices):
                return other()(*args)
        return run(*args)

    return computation


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]
