"""Words that the ranks of a job share, by the store of the default process group.

A store is no collective: no rank waits for another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from typing import Any

__all__ = [
    "IN_EAGER",
    "WAITING",
    "agreed_by_ranks",
    "has_several_ranks",
    "said_by_ranks",
    "say_to_ranks",
]

IN_EAGER = "in eager"
"""Topic of words on the last program of a rank that has fallen back."""

WAITING = "waiting"
"""Topic of words on what a rank with a compiled program has waited for, for some time."""


def agreed_by_ranks(key: str, text: str) -> str:
    """``text``, or what another rank has said under ``key`` before this one.

    For what ranks find out each for itself, as by measuring, and that decides which kernels run:
    ranks with other kernels round otherwise. The first rank decides for all. A store is no
    collective: no rank waits, and others need not ask. Without a process group it is ``text``.
    """
    store = _store()
    if store is None:
        return text
    name = f"tj/agreed/{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    return bytes(store.compare_set(name, "", text)).decode()


def say_to_ranks(topic: str, text: str) -> None:
    """Let the other ranks read ``text`` of this one under ``topic``, in place of what it said.

    Nothing happens without a process group of several ranks, or where its store has gone.
    """
    store = _store()
    with contextlib.suppress(*_GONE):
        if store is not None:
            store.set(f"tj/said/{topic}/{_group().rank()}", text)


def said_by_ranks(topic: str) -> dict[int, str]:
    """Words that ranks have said under ``topic``, by rank of the default group.

    Empty ones are left out.
    """
    store, found = _store(), dict[int, str]()
    with contextlib.suppress(*_GONE):
        for rank in range(_group().size()) if store is not None else ():
            name = f"tj/said/{topic}/{rank}"
            if store.check([name]) and (text := bytes(store.get(name)).decode()):
                found[rank] = text
    return found


_GONE = (RuntimeError,)
"""Errors of a store that has ended with its process; PyTorch's own are of this type."""


def has_several_ranks() -> bool:
    """Test for a default process group with several ranks."""
    return _store() is not None


def _store() -> Any:
    """The store of the default group, if it has several ranks; else None."""
    group = _group()
    return group.get_group_store() if group is not None and group.size() > 1 else None


def _group() -> Any:
    """The default group, if there is one; else None."""
    # A process that has not imported it has no group.
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return None
    return distributed.group.WORLD
