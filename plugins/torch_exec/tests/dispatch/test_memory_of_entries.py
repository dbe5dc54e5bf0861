"""Memory of a jitted program that is called with ever new shapes."""

from __future__ import annotations

import gc
import random
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.internal import worker
from torch import nn


def serve(g: Any, calls: int, seed: int) -> None:
    """Call ``g`` with as many random shapes."""
    numbers = random.Random(seed)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for _ in range(calls):
            x = torch.zeros(numbers.randint(1, 60), numbers.randint(1, 40), 4)
            assert g(x).shape == x.shape
    assert worker().wait(120)


def program(**options: Any) -> Any:
    return tj.jit(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), **options)


def objects_of_tj() -> int:
    """Number of the functions that were generated, and of the finalizers that exist."""
    gc.collect()
    kinds = ("finalize", "_Info", "function", "Entry", "Trace", "Compilation")
    return sum(type(o).__name__ in kinds for o in gc.get_objects())


def test_what_is_dropped_is_freed() -> None:
    g = program(dynamic=False, max_entries=3)
    serve(g, 12, 0)
    before = objects_of_tj()
    serve(g, 12, 1)
    assert tj.stats(g).evicted == 21
    assert objects_of_tj() < before + 12, "not even one for each program that was dropped"


@pytest.mark.slow
def test_many_shapes_are_few_entries() -> None:
    g = program(on_miss="eager")
    serve(g, 1_000, 0)
    serve(g, 1_000, 1)
    assert tj.stats(g).entries <= 8
    assert tj.stats(g).calls == 2_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dynamic", "calls"), [(None, 100_000), (False, 3_000)], ids=["symbols", "each shape"]
)
def test_many_calls_with_random_shapes(dynamic: bool | None, calls: int) -> None:
    g = program(dynamic=dynamic, on_miss="eager", max_entries=8)
    serve(g, calls // 3, 0)
    before, evicted = objects_of_tj(), tj.stats(g).evicted
    serve(g, calls - calls // 3, 1)
    assert tj.stats(g).calls == calls
    assert tj.stats(g).entries <= 8
    # Caches of PyTorch's grow with the first programs; the short test counts without them.
    assert objects_of_tj() < before + 500 + (tj.stats(g).evicted - evicted) / 2
