"""Shapes of fake tensors where PyTorch's fake kernels say others than its kernels compute."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tj_torch.ops.fakes.modes import fake_mode

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ["_embedding_bag", "_embedding_bag_forward_only"])
def test_bags_of_embeddings(name: str, dtype: torch.dtype) -> None:
    call = getattr(torch.ops.aten, name)
    axes = (range(3), [False, True], [False, True], [-1, 1], [False, True])
    count = 0
    for mode, last, scaled, padding, transposed in itertools.product(*axes):
        if scaled and mode:
            continue  # weights of rows are for sums alone
        rows = torch.randn(4, 10, dtype=dtype).t() if transposed else torch.randn(10, 4).to(dtype)
        places = torch.tensor([1, 2, 3, 4, 1, 2])
        begins = torch.tensor([0, 2, 6] if last else [0, 2])
        scale = torch.randn(6, dtype=dtype) if scaled else None
        args = (rows, places, begins, False, mode, False, scale, last, padding)
        with fake_mode() as mode_of_fakes:
            fakes = [
                mode_of_fakes.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args
            ]
            found = [tuple(value.shape) for value in call(*fakes)]
        assert found == [tuple(value.shape) for value in call(*args)], args[3:]
        count += 1
    assert count == 32


@pytest.mark.parametrize("dim", [0, -1, None, ()], ids=str)
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("places", [False, True])
def test_neighbours_that_are_equal(places: bool, counts: bool, dim: Any) -> None:
    call = torch.ops.aten.unique_consecutive.default
    args = (places, counts) if dim == () else (places, counts, dim)
    for vector in (torch.arange(5.0), torch.zeros(1)):
        with fake_mode(symbolic=True) as mode:
            fakes = [
                value.shape for value in call(mode.from_tensor(vector, static_shapes=True), *args)
            ]
        for found, real in zip(fakes, call(vector, *args), strict=True):
            assert isinstance(found[0], torch.SymInt) or found == real.shape
            assert not isinstance(found[0], torch.SymInt) or len(real)
    if dim == 0 and not places and not counts:
        assert fakes[1:] == [(0,), (0,)]


def test_a_view_has_the_sizes_that_are_asked_for() -> None:
    """The fake kernel has ``n * (64 // n)`` for 64, a size of another text."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    rows, columns = torch.randn(6, 64), torch.randn(16)
    with fake_mode(symbolic=True) as mode:
        x = mode.from_tensor(rows, static_shapes=True)
        context = StatelessSymbolicContext([DimDynamic.DYNAMIC])
        n = mode.from_tensor(columns, symbolic_context=context).shape[0]
        heads = x.view(6, -1, n)
        assert isinstance(heads.shape[1], torch.SymInt)
        merged = torch.ops.aten.view.default(heads.clone(), [6, 64])
        assert [str(size) for size in merged.shape] == ["6", "64"]
        assert [str(stride) for stride in merged.stride()] == ["64", "1"]
