"""A stand-in for CUDA graphs, on CPUs.

A capture notes each operator that runs, with the tensors that it read and made; a replay runs them
again on the same memory. As on a device, a capture computes nothing: results are filled with
garbage until the first replay. And as in a pool that graphs share, a replay overwrites what graphs
that were captured later have in their memory, their results included, and all that was computed on
the way in any of them.

It sees PyTorch's operators, and not kernels that a compiler calls by their address (Inductor's).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tj_cudagraph.device import Place, Run, Tensors

__all__ = ["Recorder", "RecorderPool"]

WAITS = ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.equal.default")


@dataclass
class Recorder:
    """Counts what is captured and replayed.

    ``thread`` holds what is of one thread: the number of its stream, and whether it captures.
    """

    captures: int = 0
    replays: int = 0
    warm_ups: int = 0
    pools: list[RecorderPool] = field(default_factory=list)
    thread: Any = field(default_factory=threading.local)

    @property
    def capturing(self) -> bool:
        """Whether the calling thread captures a graph."""
        return getattr(self.thread, "capturing", False)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Runs before captures, captures, replays."""
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
    """Graphs that share memory, in the order in which they were captured."""

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
    """An operator, its arguments, and what it returned that is in memory of its own."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[torch.Tensor | None]

    def run(self) -> None:
        """Compute it again, in the same memory."""
        found = tree_leaves(self.operator(*self.args, **self.kwargs))
        for mine, new in zip(self.results, found, strict=True):
            if mine is not None:
                mine.copy_(new)


class _Recording(TorchDispatchMode):
    """Notes operators below autograd, and refuses those that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run and note ``func``."""
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
    """A graph: the operators in it."""

    pool: RecorderPool
    calls: list[_Call]
    results: Tensors

    def made(self) -> list[torch.Tensor]:
        """All that is computed in the graph."""
        return [x for call in self.calls for x in call.results if x is not None]

    def on_the_way(self) -> list[torch.Tensor]:
        """What is computed in the graph, and is no result: other graphs have the same memory."""
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
    """``tree`` with tensors whose metadata stays as it is now, in the same memory."""
    return tree_map_only(torch.Tensor, torch.Tensor.detach, tree)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _overwrite(tensors: Iterable[torch.Tensor]) -> None:
    """Fill memory with what nobody computes."""
    with torch.no_grad():
        for tensor in tensors:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            whole.set_(tensor.untyped_storage()).fill_(0xA5)
