"""Interface to a device's graphs: those of CUDA, or of a recorder on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

__all__ = ["Graphs", "Place", "Pool", "Run", "Tensors"]

Tensors = Sequence[torch.Tensor]

Run = Callable[[], Tensors]
"""The calls of a segment, bound to inputs."""

Place = tuple[int, int]
"""Index of a device, and its current stream: work on one stream runs in order."""


class Pool(Protocol):
    """Memory that the graphs of one place share, and their execution there.

    Temporaries of one graph may occupy the memory of another graph's values. So the results of a
    graph are valid until the next replay of any graph in the pool.
    """

    def warm_up(self, run: Run) -> Tensors:
        """Call ``run`` on the capture stream, and return its results."""
        ...

    def capture(self, run: Run) -> tuple[Callable[[], None], Tensors]:
        """Capture the calls of ``run``; return the replay function and the results of ``run``.

        Nothing is computed: the results have values after the first replay.

        :raises RuntimeError: if a call cannot be captured.
        """
        ...


class Graphs(Protocol):
    """Graphs of one kind of device."""

    def place(self, tensor: torch.Tensor) -> Place | None:
        """Device and stream for a graph that uses ``tensor``; None during a capture there."""
        ...

    def pool(self, place: Place) -> Pool:
        """Make a pool for ``place``."""
        ...

    def copy(self, targets: Tensors, sources: Tensors) -> None:
        """Copy each of ``sources`` to the target of the same metadata."""
        ...
