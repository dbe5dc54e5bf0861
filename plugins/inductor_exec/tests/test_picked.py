"""Elements that integers pick: in regions, as in eager, and read by vectors where summed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

SUMMED: dict[str, Program] = {
    "sum": lambda table, i: F.embedding(i, table).sum(1),
    "mean": lambda table, i: table[i].mean(1).relu(),
    "largest": lambda table, i: table[i].amax(1),
    "masked mean": lambda table, i: (
        (F.embedding(i, table) * (i != 0).unsqueeze(-1)).sum(1) / (i != 0).sum(1, keepdim=True)
    ),
    "differences": lambda table, i: (table[i[:, :1]] - table[i]).square().sum(1),
    "small matrices": lambda table, i: table.view(-1, 2, 32)[i].sum(1),
    "two sums": lambda table, i: table[i].sum(1).softmax(-1) + table[i].square().sum(1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SUMMED)
def test_rows_are_summed_by_vectors(name: str, texts: Any, fusing: Any) -> None:
    f, jitted = SUMMED[name], fusing(SUMMED[name])
    table, i = torch.randn(40, 64), torch.randint(0, 40, (9, 16))
    found = []
    for g in (jitted, f):
        x = table.clone().requires_grad_()
        torch.testing.assert_close(g(table, i), f(table, i))
        g(x, i).square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-5)
    assert texts.written
    # Inductor puts elements that are apart in an array, and reads a vector from it.
    assert not any("tmpbuf" in text for text in texts.written[:1])


def test_long_sums_over_short_rows(texts: Any, fusing: Any) -> None:
    """Rows shorter than a vector, of many: vectors lie along the sum."""

    def f(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return F.embedding(i, table).sum(1)

    table, i = torch.randn(50, 3), torch.randint(0, 50, (4, 64))
    torch.testing.assert_close(fusing(f)(table, i), f(table, i))
    assert any("tmpbuf" in text for text in texts.written)


def test_a_mask_picks_outside_of_regions(fusing: Any) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2)[i > 3].sin() * 2, (x * 2)[(i % 2).to(torch.uint8).bool()] + 1

    jitted, x, i = fusing(f, strict=False), torch.randn(8, 3), torch.arange(8)
    for _ in range(2):
        for found, wanted in zip(jitted(x, i), f(x, i), strict=True):
            torch.testing.assert_close(found, wanted)


def indexed(draw: random.Random) -> Any:
    """A random index of a tensor ``[4, 5, 6, 7]``: numbers, slices and tensors of integers."""
    shapes = [(), (1,), (3,), (2, 3), (2, 1), (1, 3)]
    index: list[Any] = []
    for size in (4, 5, 6, 7)[: draw.randint(1, 4)]:
        kind = draw.random()
        if kind < 0.55:
            shape = draw.choice(shapes)
            # Dynamo does not capture a single number of int32.
            dtype = draw.choice((torch.int64, torch.int32)) if shape else torch.int64
            index.append(torch.randint(-size, size, shape, dtype=dtype))
        elif kind < 0.9:
            step = draw.randint(1, 2)
            index.append(slice(draw.choice((None, 0, 1, -3)), draw.choice((None, -1, 4)), step))
        else:
            index.append(draw.randint(-size, size - 1))
        if draw.random() < 0.1:
            index.append(None)
    if draw.random() < 0.2:
        index[draw.randrange(len(index))] = ...
    return tuple(index)


def fits(x: torch.Tensor, index: Any) -> bool:
    try:
        return x[index].numel() > 0 and any(isinstance(i, torch.Tensor) for i in index)
    except (IndexError, RuntimeError):  # tensors that do not broadcast, two ellipses, too many
        return False


@pytest.mark.sampled(4)
@pytest.mark.parametrize("permuted", [False, True], ids=["contiguous", "permuted"])
@pytest.mark.parametrize("seed", range(12))
def test_random_indices(seed: int, permuted: bool, fusing: Any) -> None:
    """Values, strides and gradients of ten random indices are eager's."""
    torch.manual_seed(seed)
    x = torch.randn(7, 5, 4, 6).permute(2, 1, 3, 0) if permuted else torch.randn(4, 5, 6, 7)
    draw = random.Random(seed)
    places = [i for i in (indexed(draw) for _ in range(60)) if fits(x, i)][:10]
    assert len(places) == 10

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 1.5
        return [
            r for i in places for r in (x[i].sin() * 2, y[i], x[i].sum(-1) if x[i].dim() else y)
        ]

    jitted, found = fusing(f), []
    for g in (jitted, f):
        given = x.clone().requires_grad_()
        results = g(given)
        sum((r * r).sum() for r in results).backward()
        found.append((results, given.grad))
    (mine, grad), (theirs, expected) = found
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    torch.testing.assert_close(grad, expected)
    assert "depends on data" not in str(tj.explain(jitted))
