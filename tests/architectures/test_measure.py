"""Rounding and wrong gradients, of a network that amplifies rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_suites.architectures import Architecture
from tj_suites.architectures.running import within_rounding
from torch import nn


class Pooled(nn.Module):
    """A batch norm over two values, as after a pooling of whole pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.narrow = nn.Conv2d(8, 8, 1, bias=False)
        self.over_two = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        return self.over_two(self.narrow(y.mean((2, 3), keepdim=True))) ** 3


def _pictures() -> dict[str, Any]:
    return {"x": torch.randn(2, 3, 32, 32)}


POOLED = Architecture("torch", "vision", "pooled", Pooled, _pictures)


def _channels_last(model: nn.Module) -> Callable[..., Any]:
    """``model``, computed in channels_last, as regions with convolutions are."""
    return lambda x: model(x.contiguous(memory_format=torch.channels_last))


def _mistaken(model: nn.Module) -> Callable[..., Any]:
    """The same with a gradient that is off by a thousandth."""
    assert isinstance(model, Pooled)
    model.conv.weight.register_hook(lambda grad: grad * 1.001)
    return _channels_last(model)


def test_the_network_amplifies_rounding() -> None:
    """Values in channels_last are not within the tolerance of others."""
    torch.manual_seed(0)
    model = Pooled()
    x = _pictures()["x"]
    grads = []
    for run in (model, _channels_last(model)):
        model.zero_grad()
        run(x).square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(*grads)


def test_rounding_of_channels_last_is_no_difference() -> None:
    """Eager in channels_last is one of those whose error is allowed."""
    assert within_rounding(POOLED, "training", _channels_last).problems == ()


def test_a_wrong_gradient_is_a_difference() -> None:
    """It is so in a network that amplifies rounding, too."""
    (problem,) = within_rounding(POOLED, "training", _mistaken).problems
    assert "not equal" in problem
