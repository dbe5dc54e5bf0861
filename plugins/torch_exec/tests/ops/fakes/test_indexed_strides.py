"""Strides of what is read at places are those of the kernel, which follow the places."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_jits
from tj_torch.ops.fakes.modes import fake_mode

SOURCES = {
    "vector": torch.rand(4),
    "rows": torch.rand(4, 5),
    "columns": torch.rand(5, 4).t(),
    "volume": torch.rand(4, 5, 6).permute(2, 0, 1),
    "expanded": torch.rand(4, 1, 6).expand(4, 5, 6),
    "part": torch.rand(4, 5, 6)[:, ::2],
}


def places(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape)


PLACES = (
    *(None, places(3), places(2, 3), places(3, 2).t(), places(1, 3), places(3, 1).t()),
    *(places(2, 1).expand(2, 3), places(4, 2, 3).permute(1, 2, 0), places(2, 3, 8)[..., ::2]),
    *(places(3, 4).int(), places(4, 3).t().int()),
)


@pytest.mark.parametrize("source", SOURCES)
def test_places_in_any_layout(source: str) -> None:
    x = SOURCES[source]
    for chosen in itertools.product(PLACES, repeat=min(x.ndim, 2)):
        try:
            real = torch.ops.aten.index.Tensor(x, list(chosen))
        except (IndexError, RuntimeError):  # shapes that do not fit, or no places
            continue
        with fake_mode() as mode:
            fakes: Any = [None if i is None else mode.from_tensor(i) for i in chosen]
            if all(i is None for i in fakes):
                continue
            found = torch.ops.aten.index.Tensor(mode.from_tensor(x), fakes)
            described = [i if i is None else (i.shape, i.stride(), i.dtype) for i in chosen]
        assert found.stride() == real.stride(), (x.stride(), described)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_table_of_transposed_places(dynamic: bool) -> None:
    def f(table: torch.Tensor, i: torch.Tensor) -> Any:
        found = table[i]
        return found, found * 2 + 1, found.stride()

    jit = functools.partial(tj.jit, plugins=["torch"], dynamic=dynamic)
    for shape in ((3, 6, 8), (2, 5, 7)):
        i = torch.randint(0, 9, shape)
        for given in (i, i.transpose(1, 2), i.permute(2, 0, 1)):
            for table in (torch.rand(9), torch.rand(9, 2)):
                assert_jits(f, table, given, jit=jit)


def test_a_table_whose_length_depends_on_data() -> None:
    def f(i: torch.Tensor) -> Any:
        found = i.flatten().bincount()[i]
        return found, found * 2 + 1

    assert_jits(f, torch.randint(0, 9, (3, 6, 8)).transpose(1, 2))
