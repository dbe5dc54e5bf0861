"""`tj.compare` with ``layers``: where the error of a network in int8 begins."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from torch import nn

pytestmark = pytest.mark.sampled(3)


class Block(nn.Module):
    """Two layers, and a product with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64)
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))) @ self.weight.t()


class Net(nn.Sequential):
    """Two blocks and a norm, perhaps with a graph break between the blocks."""

    def __init__(self, breaks: bool) -> None:
        super().__init__(Block(), Block(), nn.LayerNorm(64))
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self[0](x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self[2](self[1](x))


NAMES = ["0.up", "0.down", "0", "1.up", "1.down", "1", "2"]


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")  # of the graph break
@pytest.mark.parametrize(
    ("option", "layers", "begin", "breaks"),
    [
        ("int8", ["*", "!0*", "!1.up"], "1.down", False),
        ("int8_weights", ["*", "!0*", "!1.up"], "1.down", False),
        ("int8", ["*"], "0.up", True),
        ("int8", ["*", "!0*", "!1.up"], "1.down", True),
    ],
)
def test_the_first_layer_in_int8_departs(
    option: str, layers: list[str], begin: str, breaks: bool
) -> None:
    torch.manual_seed(0)
    net = Net(breaks).eval()
    x = torch.randn(3, 64)
    overrides = {"check": 2, "strict": True, "onednn": {option: layers}}
    session = tj.Session(("onednn", "autograd", "torch"), overrides=overrides)
    jitted = tj.jit(net, session=session, fullgraph=False)
    with torch.no_grad():
        found = tj.compare(jitted, net, (x,), layers=True)
    first = found.first(above=1e-4)  # products of oneDNN round otherwise
    assert first is not None
    assert first.output == begin
    errors = {name: figures.relative for name, figures in found.layers}
    assert [*errors] == NAMES
    assert [name for name, error in errors.items() if error > 1e-4] == NAMES[NAMES.index(begin) :]
    assert max(errors.values()) < 0.03
    assert {*found.remarks} <= {*tj.explain(jitted).remarks()}
    assert found.layers[-1].figures == found.outputs[0].figures
