"""Counts of what CUDA's graphs do, for the tests that the recorder's counts are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from tj_cudagraph.device import Graphs, Place, Pool, Run, Tensors

__all__ = ["Counted", "CountedPool"]


@dataclass
class Counted:
    """Graphs of a device, with counts of warm-up runs, captures and replays."""

    graphs: Graphs
    captures: int = 0
    replays: int = 0
    warm_ups: int = 0
    pools: list[CountedPool] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of warm-up runs, captures and replays."""
        return self.warm_ups, self.captures, self.replays

    def place(self, tensor: torch.Tensor) -> Place | None:
        """See `tj_cudagraph.device.Graphs.place`."""
        return self.graphs.place(tensor)

    def pool(self, place: Place) -> CountedPool:
        """See `tj_cudagraph.device.Graphs.pool`."""
        self.pools.append(CountedPool(self, self.graphs.pool(place)))
        return self.pools[-1]

    def copy(self, targets: Tensors, sources: Tensors) -> None:
        """See `tj_cudagraph.device.Graphs.copy`."""
        self.graphs.copy(targets, sources)


@dataclass(eq=False)
class CountedPool:
    """A pool whose uses are counted."""

    counted: Counted
    pool: Pool

    def warm_up(self, run: Run) -> Tensors:
        """See `tj_cudagraph.device.Pool.warm_up`."""
        self.counted.warm_ups += 1
        return self.pool.warm_up(run)

    def capture(self, run: Run) -> tuple[Callable[[], None], Tensors]:
        """See `tj_cudagraph.device.Pool.capture`."""
        replay, results = self.pool.capture(run)
        self.counted.captures += 1

        def counted() -> None:
            self.counted.replays += 1
            replay()

        return counted, results
