"""Slices of one element: nvFuser's kernels read some from the start of the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

close = torch.testing.assert_close

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows": lambda x: (x[1:2] * 2.5 + 1).sin() + x[2:3],
    "with the whole": lambda x: (x.sin()[2:3] * x + 1) * 2,
    "concatenated": lambda x: torch.cat([x[2:3] - x[1:2], x[2:] * 2, x[-1:] - x[-2:-1]]) * 2,
    "a gradient": lambda x: torch.gradient(x, dim=0, spacing=2.0, edge_order=2)[0] * 2,
    "of one dimension": lambda x: (x.flatten()[3:4] * 2 + 1) * x.sum(),
    "selected": lambda x: (x[1] * 2 + x[-1]).sin() * x.select(1, 2)[:, :4].sum(),
    "in the middle": lambda x: (x[:, 1:2] * 2 + x[:, 2:3]).sin() + 1,
    "last": lambda x: (x[..., 1:2] * 2 + x[..., -1:]).sin() + 1,
    "unbound": lambda x: sum(v.sin() * n for n, v in enumerate(x.unbind(0))),
    "split": lambda x: sum(v.sin() * n for n, v in enumerate(x.split(1))),
    "put": lambda x: (
        x.sin().index_put((torch.tensor([1]),), x[:1] * 2) + x.slice_scatter(x[:1], 0, 2, 3)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_element_is_read_where_it_is(name: str, fusing: Any) -> None:
    f = PROGRAMS[name]
    g = fusing(f, {"minimum": 1})
    x = torch.randn(4, 5, 6, requires_grad=True)
    expected, found = f(x), g(x)
    close(found, expected)
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
    close(*grads)
    assert tj.explain(g).regions


@pytest.mark.parametrize("n", [3, 2, 5])
def test_a_slice_of_a_symbolic_size_that_may_be_one_runs_outside(n: int, fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin()[1:] * 2 + 1).cos()

    g = fusing(f, {"minimum": 1}, dynamic=True)
    for rows in (4, n, 7):
        x = torch.randn(rows, 3, 4)
        close(g(x), f(x))
