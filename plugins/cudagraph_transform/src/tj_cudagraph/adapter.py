"""CUDA graphs of PyTorch: the only file of the plugin that uses names of ``torch.cuda``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
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
    """Memory pool of one device, a stream to warm up on, and one to capture on.

    A replay runs on the current stream. See `own_stream` for the stream of captures.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.warming: Any = torch.cuda.Stream(index)
        self.capturing = own_stream(index)
        self.handle = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Run) -> Tensors:
        """See `tj_cudagraph.device.Pool.warm_up`."""
        current = torch.cuda.current_stream(self.index)
        # On a stream beside the current one, as PyTorch's notes on CUDA graphs ask of warm-up runs.
        self.warming.wait_stream(current)
        try:
            with torch.cuda.stream(self.warming):
                results = run()
        finally:
            current.wait_stream(self.warming)
        for result in results:  # memory of the stream's, which the caller uses on another
            result.record_stream(current)
        return results

    def capture(self, run: Run) -> tuple[Callable[[], None], Tensors]:
        """See `tj_cudagraph.device.Pool.capture`.

        Other threads may allocate memory and draw random numbers meanwhile: their calls are not
        captured (``thread_local``).
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.index):
            # What `torch.cuda.graph` does, whose beginning would take milliseconds of the swap.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            with torch.cuda.stream(self.capturing):
                with random_state_left(self.index):
                    graph.capture_begin(pool=self.handle, capture_error_mode="thread_local")
                try:
                    results = run()
                finally:
                    # Else the stream would go on capturing, and refuse what waits for the device.
                    graph.capture_end()
        return graph.replay, results


@contextlib.contextmanager
def random_state_left(index: int) -> Iterator[None]:
    """Let captures that begin inside have a state of random numbers of their own.

    ``CUDAGraph.capture_begin`` marks the state of the device's default generator, and draws raise
    in every thread until the capture ends; after one that fails, for ever ("Offset increment
    outside graph capture encountered unexpectedly"). No call of a segment draws.
    """
    generator = torch.cuda.default_generators[index]
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)


NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: work on the default stream does not wait for a capture, or end it."""


def own_stream(index: int) -> Any:
    """Make a stream of device ``index`` on which no other code has run or will.

    PyTorch keeps a workspace of cuBLAS for each stream that had a matrix product, outside of the
    memory of any graph, and `torch.compile` with graphs of its own frees all of them
    (``clear_cublas_manager``). A graph that was captured with one would write to memory that is
    free, or gone. On a stream without one, the capture allocates it in the pool of the graph.
    PyTorch's own streams are 32 per priority, and shared. The stream is never destroyed: PyTorch
    knows workspaces by addresses of streams, and another stream could get this one's.

    :raises RuntimeError: if the driver makes none.
    """
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    made = ctypes.c_void_p()
    with torch.cuda.device(index):
        torch.cuda.current_blas_handle()  # makes the device's context current
        error = driver.cuStreamCreate(ctypes.byref(made), NON_BLOCKING)
    if error or made.value is None:
        raise RuntimeError(f"the driver makes no stream for CUDA graphs (error {error})")
    return torch.cuda.ExternalStream(made.value, device=index)
