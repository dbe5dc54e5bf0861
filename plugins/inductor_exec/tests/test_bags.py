"""Embedding bags: their gradients are added up in loops, and equal those of eager."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.sampled(8)

ROWS, WIDTH = 11, 8


def flat(**options: Any) -> Any:
    """Bags of a flat list of indices; the third and the last are empty."""

    def f(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        offsets = torch.tensor([0, 3, 5, 5, 9, indices.shape[0]])
        return F.embedding_bag(indices, table, offsets, **options).tanh() * 2

    return f


def rows(**options: Any) -> Any:
    def f(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices.view(-1, 4), table, **options).tanh() * 2

    return f


def weighted(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    weights = (indices.view(-1, 4) * 0.1).to(table.dtype)
    return F.embedding_bag(indices.view(-1, 4), table, mode="sum", per_sample_weights=weights)


PROGRAMS = {
    "sum": (rows(mode="sum"), True),
    "mean": (rows(), True),
    "sum of a flat list": (flat(mode="sum"), True),
    "mean of a flat list": (flat(mode="mean"), True),
    "sum with padding": (flat(mode="sum", padding_idx=2), True),
    "mean with padding": (rows(padding_idx=-1), True),
    "with the last offset": (flat(mode="sum", include_last_offset=True), True),
    "largest": (rows(mode="max"), False),
    "by frequency": (rows(scale_grad_by_freq=True), False),
    "weighted": (weighted, False),
    "sparse": (rows(mode="sum", sparse=True), False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_bags(name: str, dtype: torch.dtype, fusing: Any) -> None:
    f, in_loops = PROGRAMS[name]
    jitted = fusing(f)
    torch.manual_seed(0)
    for step, count in enumerate((12, 12, 24, 16)):
        indices = torch.randint(0, ROWS, (count,))
        indices[3:5] = 2
        table = torch.randn(ROWS, WIDTH, dtype=dtype)
        mine, theirs = table.clone().requires_grad_(), table.clone().requires_grad_()
        weights = torch.randn_like(f(indices, table))
        for g, t in ((jitted, mine), (f, theirs)):
            (g(indices, t) * weights).sum().backward()
        assert mine.grad is not None
        assert theirs.grad is not None
        assert mine.grad.layout == theirs.grad.layout
        torch.testing.assert_close(mine.grad.to_dense(), theirs.grad.to_dense())
        if step == 1:  # sizes are no symbols yet
            calls = tj.last_trace(jitted, "backward").calls
            whole = any("_embedding_bag_backward" in str(call.symbol) for call in calls)
            assert whole != (in_loops and dtype != torch.bfloat16)


def test_no_indices(fusing: Any) -> None:
    def f(indices: torch.Tensor, offsets: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, table, offsets, mode="sum") * 2

    jitted, table = fusing(f), torch.randn(ROWS, WIDTH)
    for indices in (torch.tensor([1, 1, 4]), torch.tensor([], dtype=torch.long)):
        offsets = torch.tensor([0, 0])
        mine, theirs = table.clone().requires_grad_(), table.clone().requires_grad_()
        jitted(indices, offsets, mine).sum().backward()
        f(indices, offsets, theirs).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)


def ended(jitted: Any) -> set[bool]:
    """Answers of the calls for bags in the last program: do they get the end of the last bag?"""
    names = ("_embedding_bag.default", "_embedding_bag_forward_only.default")
    calls = [c for c in tj.last_trace(jitted).walk() if c.symbol.qualname.endswith(names)]
    return {len(call.args) > 7 and call.args[7] is True for call in calls}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options", [{}, {"mode": "sum"}, {"mode": "max"}, {"padding_idx": 2}], ids=str
)
def test_bags_of_equal_size_get_the_end_of_the_last(
    options: Any, dtype: torch.dtype, fusing: Any
) -> None:
    def f(indices: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        found = [F.embedding_bag(indices.view(-1, 4), table, **options) for table in (one, two)]
        return torch.cat(found, -1)

    jitted = fusing(f)
    indices, *tables = torch.randint(0, ROWS, (12,)), *torch.randn(2, ROWS, WIDTH, dtype=dtype)
    indices[3:5] = 2
    for _ in range(2):
        found, expected = jitted(indices, *tables), f(indices, *tables)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    assert ended(jitted) == {True}
    indices[7] = ROWS
    messages = []
    for fn in (jitted, f):
        with pytest.raises(RuntimeError) as raised:
            fn(indices, *tables)
        messages.append(str(raised.value).splitlines()[0])
    assert messages[0] == messages[1]


def test_other_bags_stay(fusing: Any) -> None:
    def f(indices: torch.Tensor, table: torch.Tensor) -> Any:
        offsets = torch.arange(0, 12, 4)
        uneven = F.embedding_bag(indices, table, torch.arange(0, 12, 5))
        sizes = torch.ops.aten._embedding_bag.default(table, indices, offsets, False, 1)[2]
        return uneven, F.embedding_bag(indices, table, torch.tensor([0, 3, 5])), sizes

    jitted, table = fusing(f), torch.randn(ROWS, WIDTH)
    indices = torch.randint(0, ROWS, (12,))
    for mine, theirs in zip(jitted(indices, table), f(indices, table), strict=True):
        assert torch.equal(mine, theirs)
    assert ended(jitted) == {False}


def test_bags_that_are_differentiated_stay(fusing: Any) -> None:
    f = rows(mode="sum")
    jitted, indices = fusing(f), torch.randint(0, ROWS, (12,))
    jitted(indices, torch.randn(ROWS, WIDTH, requires_grad=True)).sum().backward()
    assert ended(jitted) == {False}
