"""`tj.compare` layer by layer."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.differences import figures
from torch import nn

pytestmark = pytest.mark.sampled(3)

X = torch.linspace(-1, 1, 12).view(3, 4)
PLUGINS = ["torch", "autograd"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    """Blocks of which one runs twice, and a layer with several results."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(4)
        self.rnn = nn.LSTM(4, 2)
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.blocks[0](self.norm(x)))
        if self.broken:
            torch._dynamo.graph_break()
        return self.rnn(self.blocks[1](x))[0]


NAMES = [
    "norm", "blocks.0.up", "blocks.0.act", "blocks.0.down", "blocks.0", "norm (2)", "blocks.1.up",
    "blocks.1.act", "blocks.1.down", "blocks.1", "rnn[0]", "rnn[1][0]", "rnn[1][1]",
]  # fmt: skip


def nets(broken: bool = False) -> tuple[Net, Net]:
    """A network, and another one with one wrong weight."""
    torch.manual_seed(0)
    net = Net(broken).eval()
    wrong = copy.deepcopy(net)
    with torch.no_grad():
        wrong.blocks[1].up.weight[0, 0] += 1
    return wrong, net


def names(found: tj.looking.comparison.Comparison) -> list[str]:
    return [layer.output for layer in found.layers]


def compiled(net: Any) -> Any:
    return torch.compile(net, backend="tj", options={"plugins": PLUGINS})


HOW = {
    "eager": lambda net: net,
    "jit": lambda net: tj.jit(net, plugins=PLUGINS),
    "behind": lambda net: tj.jit(net, plugins=PLUGINS, on_miss="eager"),
    "torch.compile": compiled,
}


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")  # of the graph break
@pytest.mark.parametrize(
    ("how", "broken"),
    [("eager", False), ("jit", False), ("jit", True), ("behind", False), ("torch.compile", True)],
)
@torch.no_grad()
def test_the_first_layer_that_departs(how: str, broken: bool) -> None:
    wrong, net = nets(broken)
    torch._dynamo.reset()  # its limit of programs for one function counts those of other tests
    jitted = HOW[how](wrong)
    found = tj.compare(jitted, net, (X,), layers=True)
    assert names(found) == NAMES
    first = found.first()
    assert first is not None
    assert first.output == "blocks.1.up"
    seen: list[torch.Tensor] = []
    for each in (wrong, net):
        handle = each.blocks[1].up.register_forward_hook(lambda *given: seen.append(given[2] + 0))
        each(X)
        handle.remove()
    assert first.figures == figures(*seen)
    assert found.first(above=1e3) is None
    assert found.remarks == ()
    assert not any(module._forward_hooks for module in (*wrong.modules(), *net.modules()))


@torch.no_grad()
def test_a_jitted_program_is_left_as_it_is() -> None:
    wrong, net = nets()
    jitted = tj.jit(wrong, plugins=PLUGINS)
    tj.compare(jitted, net, (X,), layers=True)
    assert (tj.stats(jitted).entries, tj.stats(jitted).calls) == (1, 1)


def test_gradients_are_those_of_the_call() -> None:
    wrong, net = nets()
    found = tj.compare(tj.jit(wrong, plugins=PLUGINS), net, (X,), layers=True)
    assert names(found) == NAMES
    assert not any(layer.figures.largest for layer in found.layers[:6])


_leaf, _net = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def uses_globals(x: torch.Tensor) -> torch.Tensor:
    return next(layer(x) for layer in [_leaf]) + helper(x)


def helper(x: torch.Tensor) -> torch.Tensor:
    return _net(x)


class Owner:
    def __init__(self) -> None:
        self.part = nn.Linear(4, 4)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)

    method = __call__


def given(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).sin()


def closing(net: nn.Module) -> Any:
    return lambda x: net(x).sin()


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: uses_globals, ["_leaf", "_net.0", "_net.1", "_net"]),
        (lambda: torch.no_grad()(helper), ["0", "1"]),
        (lambda: Owner(), ["part"]),
        (lambda: Owner().method, ["part"]),
        (lambda: functools.partial(given, _net), ["0", "1"]),
        (lambda: closing(_net), ["0", "1"]),
        (lambda: closing(_leaf), ["net"]),
    ],
)
def test_functions(make: Any, expected: list[str], jit: bool) -> None:
    function = make()
    run = tj.jit(function, plugins=PLUGINS) if jit else function
    found = tj.compare(run, function, (X,), layers=True)
    assert sorted(names(found)) == sorted(expected)
    assert found.first() is None


def test_modules_may_be_arguments() -> None:
    found = tj.compare(given, given, (_leaf, X), layers=True)
    assert names(found) == ["argument 0"]


@torch.no_grad()
def test_text_and_data() -> None:
    wrong, net = nets()
    found = tj.compare(wrong, net, (X,), layers=True)
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["first"] == "blocks.1.up"
    assert data["layers"][6].keys() == {"layer", "largest", "mean", "relative", "cosine", "snr"}
    text = str(found).splitlines()
    assert text[2] == ""
    assert text[3].startswith("layer          largest error")
    assert text[4].startswith("norm           0 ")
    assert found._repr_html_().count("<table>") == 2
    assert repr(found) == "<tj comparison: 1 outputs, 13 of layers>"
    without = tj.compare(wrong, net, (X,))
    assert (without.layers, without.first(), without.as_dict()["layers"]) == ((), None, [])


def test_a_nan_departs() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    wrong = copy.deepcopy(net)
    with torch.no_grad():
        wrong[0].bias[0] = float("nan")
    first = tj.compare(wrong, net, (X,), layers=True).first(above=10)
    assert first is not None
    assert first.output == "0"


SHAPES = "layer 0 differs in shape: (3, 4, 1) and (3, 4)"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Identity()),
            "layers differ in structure: only the first has 2",
        ),
        (nn.Sequential(nn.Linear(4, 4)), "layers differ in structure: only the reference has 1"),
        (
            nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Flatten()),
            "layer 0 differs in shape: (3, 4, 1) and (3, 4)",
        ),
        (torch.sin, "only the reference has 0, 1"),
    ],
)
def test_other_layers_are_an_error(other: Any, said: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(tj.TjError) as found:
        tj.compare(other, net, (X,), layers=True)
    assert said in str(found.value)


def test_a_program_without_layers_is_an_error() -> None:
    with pytest.raises(tj.TjError) as found:
        tj.compare(torch.sin, torch.sin, (X,), layers=True)
    assert "neither callable has called a layer" in str(found.value)
