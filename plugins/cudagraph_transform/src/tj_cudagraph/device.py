"""What the plugin needs of a device's graphs: CUDA's, or those of a recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

__all__ = ["Graphs", "Place", "Pool", "Run", "Tensors"]

Tensors = Sequence[torch.Tensor]

Run = Callable[[], Tensors]
"""The calls of a segment on some inputs."""

Place = tuple[int, int]
"""A device by its index, and the stream that is current there: work on it runs in order."""


class Pool(Protocol):
    """Memory that the graphs of one place share, and how they run there.

    Values that are computed on the way in one graph may lie where another has its own. So a graph's
    results are good until the next replay of any graph of the pool.
    """

    def warm_up(self, run: Run) -> Tensors:
        """What ``run`` returns, run where graphs are captured."""
        ...

    def capture(self, run: Run) -> tuple[Callable[[], None], Tensors]:
        """What replays the calls that ``run`` makes, and what ``run`` returned.

        Nothing is computed: the results have values once the graph is replayed.

        :raises RuntimeError: if a call cannot be captured.
        """
        ...


class Graphs(Protocol):
    """The graphs of one kind of device."""

    def place(self, tensor: torch.Tensor) -> Place | None:
        """Where a graph that uses ``tensor`` runs; None while one is captured there."""
        ...

    def pool(self, place: Place) -> Pool:
        """A new pool for ``place``."""
        ...

    def copy(self, targets: Tensors, sources: Tensors) -> None:
        """Copy ``sources`` to ``targets`` of the same metadata."""
        ...
