"""Groups of ``torch.distributed`` by name, their stores, waits, and running backwards."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from tj_torch.extend import IN_EAGER, WAITING, said_by_ranks, say_to_ranks
from torch import distributed

from tj_distributed import names

__all__ = [
    "Members", "finish", "gather_out", "group_of", "has_coalesced", "in_backward", "is_on_gloo",
    "number_of_ranks", "ranks_of", "timeout_of",
]  # fmt: skip


class Members:
    """The ranks of a group as they know each other by its store."""

    def __init__(self, group: Any, prefix: str) -> None:
        self.rank: int = group.rank()
        self.size: int = group.size()
        self.store: Any = distributed.PrefixStore(prefix, group.get_group_store())
        self.timeout = timeout_of(group)
        self.ranks = distributed.get_process_group_ranks(group)

    def has(self, key: str) -> bool:
        """Test if some rank has set ``key``; does not wait."""
        return bool(self.store.check([key]))

    def get(self, key: str) -> str:
        """Text of ``key``; waits for a missing one."""
        return bytes(self.store.get(key)).decode()

    def set(self, key: str, text: str) -> None:
        """Let all ranks see ``text``."""
        self.store.set(key, text)

    def drop(self, key: str) -> None:
        """Remove ``key``."""
        self.store.delete_key(key)

    def waiting(self, text: str) -> None:
        """Let ranks that run in eager see what this one waits for; nothing any more if empty."""
        say_to_ranks(WAITING, text)

    def in_eager(self) -> dict[int, str]:
        """The program that runs in eager on a rank, the last one, with the reason, by rank."""
        found = said_by_ranks(IN_EAGER)
        return {i: found[r] for i, r in enumerate(self.ranks) if r in found}


def timeout_of(group: Any) -> float:
    """Seconds after which collectives of ``group`` give up, or its store, if that is sooner."""
    found = [group.get_group_store().timeout]
    if names.look(names.GLOO):
        # A group may have a backend for each device; all have the timeout of the group.
        with contextlib.suppress(AttributeError, RuntimeError):
            backend = names.backend_of(group, torch.device("cpu"))
            found.append(names.timeout_of.fget(backend.options))
    return float(min(found).total_seconds())


def finish(tensor: torch.Tensor) -> None:
    """Wait for the collective that gives ``tensor``, in C++; nothing can interrupt it."""
    names.WAIT(tensor)


def gather_out(x: torch.Tensor, ranks: int, group: str, out: torch.Tensor) -> None:
    """Start a gather of ``x`` into ``out``."""
    names.ALL_GATHER_OUT(x, ranks, group, out=out)


def group_of(name: str) -> Any:
    """The process group called ``name`` in captured programs.

    :raises ValueError: if there is none, as after ``destroy_process_group``.
    """
    return names.resolve_group(name)


def number_of_ranks() -> int:
    """Number of ranks in the job."""
    return distributed.get_world_size()


def in_backward() -> bool:
    """Test if PyTorch's autograd runs a backward in this thread."""
    return names.look(names.CHECKPOINTS) and names.backward_id() != -1  # -1 outside of a backward


def ranks_of(name: str) -> int:
    """Number of ranks in the group called ``name``; 1 if there is none any more."""
    try:
        return int(group_of(name).size())
    except (RuntimeError, ValueError):
        return 1


def has_coalesced(name: str) -> bool:
    """Test if the backend of the group called ``name`` has collectives of several tensors."""
    try:
        # Of others that is not known; what PyTorch's base class of backends has for them raises.
        return distributed.get_backend(group_of(name)) in ("gloo", "nccl", "fake")
    except (RuntimeError, ValueError):
        return False


def is_on_gloo(name: str) -> bool:
    """Test if gloo runs collectives of CPU tensors in the group called ``name``."""
    if not names.look(names.GLOO):
        return False
    try:
        # A group may have a backend for each device, as of "cpu:gloo,cuda:nccl".
        return bool(names.backend_of(group_of(name), torch.device("cpu")).name() == "gloo")
    except (RuntimeError, ValueError):
        return False
