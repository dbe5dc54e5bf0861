"""Programs that the tests of packages export."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    """A module with tied weights, a buffer, a tensor in a list, and several kinds of results."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.unused = torch.nn.Linear(2, 2)
        self.register_buffer("offset", torch.arange(4.0))
        self.register_buffer("wide", torch.rand(4, 2).t().contiguous().t(), persistent=False)
        self.others = [torch.rand(4)]

    def forward(self, x: torch.Tensor, *, scale: float = 1.0, parts: Any = ()) -> Any:
        y = self.second(F.gelu(self.first(x))) * scale + self.offset + self.others[0]
        for part in parts:
            y = y + part["more"]
        return {"y": y, "x": x, "three": 3, "pair": (y @ self.wide, [torch.ones(3)])}


class Pair(NamedTuple):
    """A result with names."""

    first: torch.Tensor
    second: torch.Tensor


def pair(x: torch.Tensor) -> Pair:
    return Pair(x + 1, x)


def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + y


def greatest(x: torch.Tensor) -> Any:
    return x.max(0)
