"""Distributed training for tj."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tj_distributed.sharding import shard

__all__ = ["shard"]


def __getattr__(name: str) -> Any:
    """Import torch only where a name that needs it is asked for."""
    if name == "shard":
        from tj_distributed.sharding import shard

        return shard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
