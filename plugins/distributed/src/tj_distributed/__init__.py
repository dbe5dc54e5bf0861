"""Distributed training for tj."""

from __future__ import annotations

TYPE_CHECKING = False  # listing plugins imports this file, and pays for what it imports
if TYPE_CHECKING:
    from typing import Any

    from tj_distributed.sharding import shard

__all__ = ["shard"]


def __getattr__(name: str) -> Any:
    """Import torch only where a name that needs it is asked for."""
    if name == "shard":
        from tj_distributed.sharding import shard

        return shard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
