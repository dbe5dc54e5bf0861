"""The module that most rows of the composability table use, and a step of its training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from tj_suites.composability.row import Jit

__all__ = ["Net", "data", "grads", "jitted_net", "state", "step"]


class Net(nn.Module):
    """Parameters, running statistics, a buffer of either kind, a plain attribute."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)
        self.offset: torch.Tensor
        self.hidden: torch.Tensor
        self.last = nn.Linear(width, 3)
        self.register_buffer("offset", torch.ones(3))
        self.register_buffer("hidden", torch.full((3,), 2.0), persistent=False)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> Any:
        """``(batch, 3)`` to ``(batch, 3)``."""
        return self.last(self.norm(self.first(x)) * self.scale) + self.offset * self.hidden


def data(rows: int = 2) -> torch.Tensor:
    """``(rows, 3)``, float32, from -1 to 1."""
    return torch.linspace(-1, 1, 3 * rows).reshape(rows, 3)


def jitted_net(jit: Jit, **options: Any) -> tuple[Any, Net]:
    """A `Net` made from the same seed each time: jitted, and itself."""
    torch.manual_seed(0)
    net = Net()
    return jit(net, **options), net


def grads(module: Any) -> list[Any]:
    """Copies of the parameters' gradients, None where there is none."""
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def state(module: Any) -> dict[str, Any]:
    """A copy of the state dict."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def step(module: Any, x: torch.Tensor) -> list[Any]:
    """One forward and backward: the output, and the gradients, which are cleared."""
    out = module(x)
    out.sum().backward()
    found = [out.detach(), *grads(module)]
    module.zero_grad()
    return found
