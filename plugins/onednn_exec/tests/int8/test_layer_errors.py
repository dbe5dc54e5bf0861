"""`tj.compare` with ``layers``: where the error of a network in int8 begins."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn


class Block(nn.Module):
    """Two layers, and a product with a weight of its own."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64)
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.up(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.down(y) @ self.weight.t()


def relative(found: Any) -> dict[str, float]:
    return {name: figures.relative for name, figures in found.layers}


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("option", ["int8", "int8_weights"])
def test_the_first_layer_in_int8_departs(option: str, breaks: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Block(breaks), Block(breaks), nn.LayerNorm(64)).eval()
    x = torch.randn(3, 64)
    overrides = {"check": 2, "strict": True, "onednn": {option: ["*", "!0*", "!1.up"]}}
    session = tj.Session(("onednn", "autograd", "torch"), overrides=overrides)
    jitted = tj.jit(net, session=session, fullgraph=False)
    with torch.no_grad():
        found = tj.compare(jitted, net, (x,), layers=True)
    first = found.first()
    assert first is not None
    assert first.output == "1.down"
    errors = relative(found)
    assert [*errors] == ["0.up", "0.down", "0", "1.up", "1.down", "1", "2"]
    assert [name for name, error in errors.items() if error > 1e-4] == ["1.down", "1", "2"]
    assert max(errors.values()) < 0.03
    assert found.remarks == ()
    assert found.layers[-1].figures == found.outputs[0].figures
