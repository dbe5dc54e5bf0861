"""CUDA graphs of PyTorch: the only file of the plugin that uses names of ``torch.cuda``.

It has not run on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tj_cudagraph.names import COPIES, TABLE, copy_all, one_by_one

if TYPE_CHECKING:
    from tj_cudagraph.device import Place, Run, Tensors

__all__ = ["CudaGraphs", "CudaPool", "unavailable"]


def unavailable() -> str | None:
    """Reason why this process cannot capture graphs; None if it can."""
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device"
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return "PYTORCH_NO_CUDA_MEMORY_CACHING is set, and graphs need PyTorch's allocator"
    return None


class CudaGraphs:
    """The graphs of CUDA devices."""

    def __init__(self) -> None:
        self._copy = copy_all

    def place(self, tensor: torch.Tensor) -> Place | None:
        """See `tj_cudagraph.device.Graphs.place`."""
        if torch.cuda.is_current_stream_capturing():
            return None
        return tensor.get_device(), torch.cuda.current_stream(tensor.device).cuda_stream

    def pool(self, place: Place) -> CudaPool:
        """See `tj_cudagraph.device.Graphs.pool`."""
        if COPIES in TABLE.lost:  # which is known when a program is compiled
            self._copy = one_by_one
        return CudaPool(place[0])

    def copy(self, targets: Tensors, sources: Tensors) -> None:
        """Copy many tensors, in one launch if PyTorch can."""
        self._copy(list(targets), list(sources))


class CudaPool:
    """Memory pool of one device, and a stream to capture on.

    Warm-up runs use that stream, so that per-stream workspaces of libraries (cuBLAS) exist before
    the first capture, and outside of the pool. A replay runs on the current stream.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.stream: Any = torch.cuda.Stream(index)
        self.handle = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Run) -> Tensors:
        """See `tj_cudagraph.device.Pool.warm_up`."""
        current = torch.cuda.current_stream(self.index)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                results = run()
        finally:
            current.wait_stream(self.stream)
        for result in results:  # memory of the stream's, which the caller uses on another
            result.record_stream(current)
        return results

    def capture(self, run: Run) -> tuple[Callable[[], None], Tensors]:
        """See `tj_cudagraph.device.Pool.capture`.

        Other threads may allocate memory meanwhile: their calls are not captured
        (``thread_local``).
        """
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self.index),
            torch.cuda.graph(
                graph, pool=self.handle, stream=self.stream, capture_error_mode="thread_local"
            ),
        ):
            results = run()
        return graph.replay, results
