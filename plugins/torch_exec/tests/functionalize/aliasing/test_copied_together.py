"""New values of several inputs are copied by one call, or two: counted by versions, and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from torch import nn


def norms() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Tanh(), nn.BatchNorm1d(3))


def shared() -> nn.Module:
    """Two norms of one pair of statistics: what the second reads is what the first has written."""
    net = norms()
    net[3].running_mean, net[3].num_batches_tracked = (
        net[0].running_mean,
        net[0].num_batches_tracked,
    )
    return net


class Written(nn.Module):
    """Counted writes, several to one buffer; writes through ``.data``; one that has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("counted", "twice", "hidden", "linked"):
            self.register_buffer(name, torch.ones(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counted.add_(1)
        self.twice.mul_(2)
        self.hidden.data.add_(self.twice)
        self.twice.add_(self.hidden)
        self.linked = self.linked.detach()
        self.linked.mul_(self.weight)
        return x * self.weight * self.hidden + self.linked


NETS: dict[str, Callable[[], nn.Module]] = {"norms": norms, "shared": shared, "written": Written}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]()


def jit(net: nn.Module) -> Any:
    overrides = {"torch": {"functional": "always"}, "check": 2, "strict": True}
    return tj.jit(net, session=tj.Session(("autograd", "torch"), overrides=overrides))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_values_and_versions_are_eagers(name: str, grad: bool) -> None:
    net, twin = made(name), made(name)

    def step(model: nn.Module, f: Any, x: torch.Tensor) -> list[Any]:
        with torch.set_grad_enabled(grad):
            result = f(x)
            gradients = torch.autograd.grad(result.sum(), [*model.parameters()]) if grad else ()
        buffers = [b.detach().clone() for b in model.buffers()]
        return [result.detach(), *gradients, *buffers, *(b._version for b in model.buffers())]

    jitted = jit(net)
    for _ in range(3):
        x = torch.randn(4, 3)
        assert_equal(step(net, jitted, x), step(twin, twin, x))


@pytest.mark.parametrize("grad", [True, False])
def test_norms_take_two_calls(grad: bool) -> None:
    jitted = jit(norms())
    with torch.set_grad_enabled(grad):
        jitted(torch.randn(4, 3))
    text = tj.last_trace(jitted, "epilogue").python(bodies=False, sources=False)
    assert (text.count("copy_all("), text.count("copy_all_back(")) == (1, 1)
    assert "copy_(" not in text
