"""Least kernels and bytes of a workload, as the benchmarks count them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import limits

    yield limits
    sys.modules.pop("limits")


X, W = torch.ones(8, 16), torch.ones(16, 16)


def recorded(limits: Any, run: Any) -> tuple[list[int], int]:
    """Numbers of runs of each large kernel, and the bytes beside them."""
    recorder = limits.Recorder()
    with recorder:
        result = run()
    return [count for count, _ in recorder.kernels.values()], recorder.bytes(result)


def test_equal_products_are_one_kernel(limits: Any) -> None:
    assert recorded(limits, lambda: (X @ W) @ W) == ([2], 0)
    assert recorded(limits, lambda: (X @ W, W @ W))[0] == [1, 1]


def test_what_stands_between_small_operations_is_not_moved(limits: Any) -> None:
    assert recorded(limits, lambda: (X + 1).sin().t()) == ([], 2 * X.nbytes)
    assert recorded(limits, lambda: (X.sin() * 2) * X.cos()) == ([], 2 * X.nbytes)


def test_what_large_kernels_take_and_make_is_moved(limits: Any) -> None:
    assert recorded(limits, lambda: (X.sin() @ W).cos()) == ([1], 4 * X.nbytes)


def test_of_tables_what_is_found_counts(limits: Any) -> None:
    index = torch.zeros(3, dtype=torch.int64)
    rows = 3 * 16 * 4
    assert recorded(limits, lambda: W[index]) == ([], index.nbytes + 2 * rows)


def test_the_limit_is_the_best_way_and_the_bytes(
    limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([3.0, 2.0])
    monkeypatch.setattr(limits, "_other_ways", lambda *call: iter([lambda: None]))
    monkeypatch.setattr(limits, "_seconds", lambda run: next(seconds))
    monkeypatch.setattr(limits, "bandwidth", lambda: float(X.nbytes))
    assert limits.limit(lambda: ((X @ W) @ W).cos(), lambda: []) == 2 * 2.0 + 2
