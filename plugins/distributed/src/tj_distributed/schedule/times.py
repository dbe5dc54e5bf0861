"""Estimated times of calls: from bytes, arithmetic and speeds, which are the same on all ranks.

Nothing is measured: ranks that measure would decide each for itself, and run collectives in
different orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tj_core.extend import BoundSymbol, TensorProxy, makes_views
from tj_torch.extend import byte_size, operations
from tj_torch.internal import parts_to_count

from tj_distributed.sequence import TORCH_WAIT, described, starts

__all__ = ["SPEEDS", "Speeds", "Times", "collective_seconds"]


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of a device and of its network.

    ``arithmetic`` in operations per second; ``memory``, and ``network`` of one rank in one
    direction, in bytes per second; ``latency`` of one step of a collective in seconds; ``launch``
    of one call in seconds.
    """

    arithmetic: float
    memory: float
    network: float
    latency: float
    launch: float

    def changed(self, **given: float | None) -> Speeds:
        """Replace the speeds that are ``given`` and not None."""
        return replace(self, **{name: s for name, s in given.items() if s is not None})


SPEEDS = {
    "cpu": Speeds(2e11, 2e10, 1e9, 5e-5, 2e-6),
    "cuda": Speeds(3e14, 2e12, 1e11, 1e-5, 5e-6),
}
"""Typical speeds by type of device; a device that is not here has those of ``cuda``."""


def collective_seconds(
    operation: str, size: float, ranks: int, network: float, latency: float
) -> float:
    """Estimate the seconds of a collective between ``ranks`` ranks.

    ``size`` is in bytes, of the side on which a rank has all shards. Of these it sends and receives
    all but its own, in as many steps as a tree has; a reduction without shards does so twice.
    """
    if ranks <= 1:
        return 0.0
    once = size * (ranks - 1) / ranks / network + math.ceil(math.log2(ranks)) * latency
    return 2 * once if operation.startswith("all_reduce") else once


@dataclass(frozen=True, slots=True)
class Times:
    """Estimates for the calls of a program.

    ``speeds`` are changed by what is ``given``; ``ranks`` is the number of ranks of a group.
    """

    ranks: Callable[[str], int]
    given: dict[str, float | None]

    def seconds(self, call: BoundSymbol) -> float:
        """Seconds that ``call`` computes; its parts run one by one, a region's together.

        Views, starts and waits take none.
        """
        tensors = [p for p in (*call.flat_args, *call.flat_outs) if isinstance(p, TensorProxy)]
        passes = starts(call) or call.symbol.qualname == TORCH_WAIT or makes_views(call)
        if passes or not tensors:
            return 0.0
        speeds = self.speeds(tensors)
        parts = parts_to_count(call)
        if call.body is not None and call.symbol.name.startswith("region_"):
            arithmetic = sum(map(operations, parts)) / speeds.arithmetic
            return max(arithmetic, sum(map(byte_size, tensors)) / speeds.memory) + speeds.launch
        return sum(self._operator(part, speeds) for part in parts)

    def collective(self, call: BoundSymbol) -> float:
        """Seconds that the collective takes which ``call`` starts, if nothing else is sent."""
        found, speeds = described(call), self.speeds(call.flat_args)
        size = max(sum(map(byte_size, side)) for side in (call.flat_args, call.flat_outs))
        ranks = self.ranks(found.group)
        return collective_seconds(found.operation, size, ranks, speeds.network, speeds.latency)

    def speeds(self, values: Iterable[Any]) -> Speeds:
        """The speeds of the device of the first tensor among ``values``."""
        device = next((p.device.type for p in values if isinstance(p, TensorProxy)), "cuda")
        return SPEEDS.get(device, SPEEDS["cuda"]).changed(**self.given)

    def _operator(self, call: BoundSymbol, speeds: Speeds) -> float:
        if makes_views(call):
            return 0.0
        moved = sum(byte_size(p) for p in (*call.flat_args, *call.flat_outs))
        return max(operations(call) / speeds.arithmetic, moved / speeds.memory) + speeds.launch
