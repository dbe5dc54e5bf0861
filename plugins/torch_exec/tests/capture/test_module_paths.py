"""Paths of modules in traces: the same in a program and in its parts at graph breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn

pytestmark = [pytest.mark.sampled(2), pytest.mark.usefixtures("lenient")]

X = torch.ones(2, 3)


class Block(nn.Module):
    """Two layers, with a graph break between them if it ``breaks``."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.up, self.down, self.breaks = nn.Linear(3, 3), nn.Linear(3, 3), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.down(x.relu())


class Net(nn.Module):
    """Two blocks, which break the graph, or it breaks after them."""

    def __init__(self, inner: bool, outer: bool) -> None:
        super().__init__()
        self.blocks, self.breaks = nn.Sequential(Block(False), Block(inner)), outer
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.head(x)


class Holder:
    """An object with a model."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def step(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.net(x)
        return result


def behind_a_hook(net: nn.Module) -> nn.Module:
    net.register_forward_hook(torch.compiler.disable(lambda module, args, out: out + 1))
    return net


PROGRAMS: dict[str, Callable[[nn.Module], Any]] = {
    "a module": lambda net: net,
    "a closure": lambda net: lambda x: net(x),
    "a method": lambda net: Holder(net).step,
    "a module with a hook": behind_a_hook,
}


def paths(program: Any) -> list[str]:
    """The paths of the modules that calls of ``program`` ran in."""
    torch._dynamo.reset()
    jitted = tj.jit(program, plugins=["torch"])
    jitted(X)
    calls = [c for p in tj.programs(jitted) for c in p.traces[0].calls]
    found = (call.source for call in calls)
    return [source.module_path for source in found if source is not None]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_a_graph_break_leaves_paths_as_they_are(name: str) -> None:
    made = PROGRAMS[name]
    whole = paths(made(Net(False, False)))
    assert whole[-1].endswith("head")
    if name.startswith("a module"):
        assert whole[0] == "blocks.0.up"
    assert paths(made(Net(True, False))) == whole
    assert paths(made(Net(False, True))) == whole
