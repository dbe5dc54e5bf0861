"""Tensors that Dynamo guards by identity, whose ``data`` is assigned between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

pytestmark = pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")

CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strides": lambda x: x.t().contiguous().t(),
    "shape": lambda x: x[:2, :1].clone(),
    "data type": lambda x: x.double(),
}


def read(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x.stride()[0] + x.shape[0] + x.element_size()


def whole(xs: dict[torch.Tensor, int]) -> list[torch.Tensor]:
    return [read(x) for x in xs]


def part(xs: dict[torch.Tensor, int]) -> list[torch.Tensor]:
    torch._dynamo.graph_break()
    return [read(x) for x in xs]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("f", [whole, part])
def test_keys_of_dicts(f: Callable[..., Any], change: str) -> None:
    g, x = tj.jit(f), torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(g({x: 1}), f({x: 1}), rtol=0, atol=0)
    x.data = CHANGES[change](x.data)
    for _ in range(2):
        torch.testing.assert_close(g({x: 1}), f({x: 1}), rtol=0, atol=0)


@pytest.mark.parametrize("broken", [False, True])
def test_parameters_of_optimizers(broken: bool) -> None:
    """A step has another program for other strides; values alone bring no new one."""
    p = torch.randn(3, 4).requires_grad_()
    optimizer = torch.optim.SGD([p], lr=0.1)

    def f() -> None:
        if broken:
            torch._dynamo.graph_break()
        optimizer.step()

    g, found = tj.jit(f), []
    for i, strides in enumerate([(4, 1), (4, 1), (1, 3), (1, 3), (4, 1)]):
        p.data = torch.randn(12)[:].as_strided((3, 4), strides)
        p.grad = torch.ones(3, 4)
        expected = p.detach() - 0.1
        g()
        torch.testing.assert_close(p.detach(), expected)
        found.append(tj.stats(g).misses)
        if not broken:
            assert found[-1] == [1, 1, 2, 2, 2][i]
