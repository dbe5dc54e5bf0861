"""Decisions that all ranks of a job share, by the store of the default process group."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

__all__ = ["agreed_by_ranks", "has_several_ranks"]


def agreed_by_ranks(key: str, text: str) -> str:
    """``text``, or what another rank has said under ``key`` before this one.

    For what ranks find out each for itself, as by measuring, and that decides which kernels run:
    ranks with other kernels round otherwise. The first one decides for all. A store is no
    collective: no rank waits, and others need not ask. Without a process group it is ``text``.
    """
    store = _store()
    if store is None:
        return text
    name = f"tj/agreed/{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    return bytes(store.compare_set(name, "", text)).decode()


def has_several_ranks() -> bool:
    """Test for a default process group with several ranks."""
    return _store() is not None


def _store() -> Any:
    """The store of the default group, if it has several ranks; else None."""
    # A process that has not imported it has no group.
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD
    return group.get_group_store() if group.size() > 1 else None
