"""Execution of a region, with corrections where nvFuser's results differ from the trace's metadata.

nvFuser returns views of its inputs where a definition only copies, expands a value by strides of 0,
and chooses the strides of dimensions of size 1. A region's outputs are tensors of their own with
the strides in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    Boxed,
    Dim,
    FusionRegion,
    Proxy,
    SymDim,
    TensorProxy,
    evaluate_size,
    interpreter,
    size_places,
    symbols_in,
)

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Run

__all__ = ["RegionRun"]

REMEMBERED = 1024
"""Number of sizes whose runner is cached."""

Strides = tuple[tuple[int, ...], ...]


class RegionRun:
    """Runs ``region`` by ``run``; for sizes of 0 and 1 its operations run one by one.

    The definition assumes that symbols are neither. nvFuser compiles it again for other sizes, so
    the first run for each is compared with the trace. The inputs ``seeds`` are states of random
    numbers, which the definition takes as numbers.
    """

    def __init__(self, region: FusionRegion, run: Run, seeds: frozenset[int]) -> None:
        self.run, self.seeds = run, seeds
        self.first_run = region.first_run
        self.outputs = [p for p in region.outputs if isinstance(p, TensorProxy)]
        self.names = symbols_in(region.inputs)
        self.sizes = _reader(region.inputs, self.names)
        self.one_by_one = interpreter(region)
        self.known: dict[tuple[int, ...], Boxed] = {}

    def __call__(self, box: list[Any]) -> Sequence[Any]:
        """Run the region for the inputs in ``box``, which is empty afterwards."""
        sizes = self.sizes(box)
        found = self.known.get(sizes)
        return self.first(sizes, box) if found is None else found(box)

    def first(self, sizes: tuple[int, ...], box: list[Any]) -> Sequence[Any]:
        """Run the region for the first time where symbols have ``sizes``."""
        if len(self.known) >= REMEMBERED:
            self.known.clear()
        # Until the first run has ended: one that raises is not tried again for these sizes.
        self.known[sizes] = self.unfused
        if any(n < 2 for n in sizes):
            return self.unfused(box)
        fused = partial(self.fused, self.strides(dict(zip(self.names, sizes, strict=True))))
        outputs = self.first_run(lambda: fused, box)
        if outputs is None:
            return self.unfused(box)
        self.known[sizes] = fused
        return outputs

    def fused(self, strides: Strides, box: list[Any]) -> Sequence[Any]:
        """Run the definition, and give its results ``strides``."""
        inputs = box[:]
        box.clear()
        return list(_settled(self.run(self.taken(inputs)), strides, inputs))

    def taken(self, inputs: list[Any]) -> list[Any]:
        """Convert ``inputs`` to those of the definition: a state becomes two numbers."""
        if not self.seeds:
            return inputs
        # A state is on the CPU, so that this waits for no device.
        parts = (x.tolist() if i in self.seeds else (x,) for i, x in enumerate(inputs))
        return [x for part in parts for x in part]

    def unfused(self, box: list[Any]) -> Sequence[Any]:
        """Run the operations one by one."""
        inputs = box[:]
        box.clear()
        return self.one_by_one(*inputs)

    def strides(self, sizes: Mapping[str, int]) -> Strides:
        """Strides of the outputs where symbols have ``sizes``."""

        def number(n: Dim) -> int:
            return int(evaluate_size(n.name, sizes.__getitem__)) if isinstance(n, SymDim) else n

        return tuple(tuple(map(number, p.strides)) for p in self.outputs)


def _reader(
    inputs: Sequence[Proxy], names: Sequence[str]
) -> Callable[[list[Any]], tuple[int, ...]]:
    """Make the function that reads the values of symbols off the inputs."""
    places = size_places(inputs)
    found = [places[name] for name in names]

    def read(box: list[Any]) -> tuple[int, ...]:
        return tuple(box[p.index] if p.dim is None else box[p.index].size(p.dim) for p in found)

    return read


def _settled(
    results: Sequence[torch.Tensor], strides: Strides, inputs: Sequence[Any]
) -> Iterator[torch.Tensor]:
    """Yield ``results`` with ``strides``, each in memory of its own."""
    taken = {_memory(x) for x in inputs if isinstance(x, torch.Tensor)}
    for result, wanted in zip(results, strides, strict=True):
        if result.stride() != wanted or _memory(result) in taken:
            made = torch.empty_strided(
                result.shape, wanted, dtype=result.dtype, device=result.device
            )
            result = made.copy_(result)
        taken.add(_memory(result))
        yield result


def _memory(x: torch.Tensor) -> int:
    # Of the storage, not the tensor: two slices of it begin at different addresses.
    return x.untyped_storage().data_ptr()
