"""A stand-in for CUDA graphs, on CPUs.

A capture records each operator that runs, with the tensors that it read and made; a replay runs the
operators again on the same memory. As on a device, a capture computes nothing: results are filled
with garbage until the first replay. As in a shared pool, a replay overwrites all memory, results
included, of graphs that were captured later, and the temporaries of every graph.

It sees PyTorch's operators only, not kernels that a compiler calls by address (Inductor's).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

import torch

from tj_cudagraph.names import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

    from tj_cudagraph.device import Place, Run, Tensors
else:
    from tj_cudagraph.names import TorchDispatchMode

__all__ = ["Recorder", "RecorderPool"]

WAITS = ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.equal.default")


@dataclass
class Recorder:
    """Counts captures and replays.

    ``thread`` is thread-local: the number of the thread's stream, and a flag while it captures.
    """

    captures: int = 0
    replays: int = 0
    warm_ups: int = 0
    pools: list[RecorderPool] = field(default_factory=list)
    thread: Any = field(default_factory=threading.local)

    @property
    def capturing(self) -> bool:
        """True while the calling thread captures a graph."""
        return getattr(self.thread, "capturing", False)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of warm-up runs, captures and replays."""
        return self.warm_ups, self.captures, self.replays

    def place(self, tensor: torch.Tensor) -> Place | None:
        """See `tj_cudagraph.device.Graphs.place`."""
        return None if self.capturing else (0, getattr(self.thread, "stream", 0))

    def pool(self, place: Place) -> RecorderPool:
        """See `tj_cudagraph.device.Graphs.pool`."""
        self.pools.append(RecorderPool(self))
        return self.pools[-1]

    def copy(self, targets: Tensors, sources: Tensors) -> None:
        """See `tj_cudagraph.device.Graphs.copy`."""
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


@dataclass(eq=False)
class RecorderPool:
    """Graphs that share memory, in the order of their capture."""

    recorder: Recorder
    graphs: list[ReferenceType[Recorded]] = field(default_factory=list)

    def warm_up(self, run: Run) -> Tensors:
        """See `tj_cudagraph.device.Pool.warm_up`."""
        self.recorder.warm_ups += 1
        return run()

    def capture(self, run: Run) -> tuple[Callable[[], None], Tensors]:
        """See `tj_cudagraph.device.Pool.capture`."""
        self.recorder.thread.capturing = True
        try:
            with _Recording() as recording:
                results = run()
        except Exception as error:  # as the end of a capture does, whatever was wrong inside
            raise RuntimeError("operation failed due to a previous error during capture") from error
        finally:
            self.recorder.thread.capturing = False
        graph = Recorded(self, recording.calls, results)
        self.graphs.append(ref(graph))
        self.recorder.captures += 1
        _overwrite(graph.made())
        return graph.replay, results


@dataclass(frozen=True, slots=True)
class _Call:
    """An operator call: operator, arguments, and results; None for a result that aliases an
    argument.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[torch.Tensor | None]

    def run(self) -> None:
        """Compute the results again, in the same memory."""
        found = tree_leaves(self.operator(*self.args, **self.kwargs))
        for mine, new in zip(self.results, found, strict=True):
            if mine is not None:
                mine.copy_(new)


class _Recording(TorchDispatchMode):
    """Records operators below autograd, and refuses those that wait for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run and record ``func``."""
        if str(func) in WAITS:
            raise RuntimeError(f"operation not permitted when stream is capturing ({func})")
        kwargs = kwargs or {}
        args_now, kwargs_now = _now(args), _now(kwargs)
        result = func(*args, **kwargs)
        given = {_memory(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        results = [
            x.detach() if isinstance(x, torch.Tensor) and _memory(x) not in given else None
            for x in tree_leaves(result)
        ]
        self.calls.append(_Call(func, args_now, kwargs_now, results))
        return result


@dataclass(eq=False)
class Recorded:
    """A graph: its recorded operator calls."""

    pool: RecorderPool
    calls: list[_Call]
    results: Tensors

    def made(self) -> list[torch.Tensor]:
        """All tensors that the graph computes."""
        return [x for call in self.calls for x in call.results if x is not None]

    def on_the_way(self) -> list[torch.Tensor]:
        """Temporaries of the graph, whose memory other graphs share."""
        kept = {_memory(x) for x in self.results}
        return [x for x in self.made() if _memory(x) not in kept]

    def replay(self) -> None:
        """Run all operators again."""
        self.pool.recorder.replays += 1
        alive = [graph for r in self.pool.graphs if (graph := r()) is not None]
        for graph in alive:  # captured later: memory that was free then is its
            if graph is not self and alive.index(graph) > alive.index(self):
                _overwrite(graph.made())
            _overwrite(graph.on_the_way())
        with torch.no_grad():
            for call in self.calls:
                call.run()


def _now(tree: Any) -> Any:
    """``tree`` with detached tensors: the metadata of now, on the same memory."""
    return tree_map_only(torch.Tensor, torch.Tensor.detach, tree)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _overwrite(tensors: Iterable[torch.Tensor]) -> None:
    """Fill the memory of ``tensors`` with garbage."""
    with torch.no_grad():
        for tensor in tensors:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            whole.set_(tensor.untyped_storage()).fill_(0xA5)
