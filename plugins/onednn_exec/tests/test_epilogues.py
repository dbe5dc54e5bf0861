"""Layers and activations in one call, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_onednn import choice
from tj_onednn.timing import Times


@pytest.fixture
def together() -> Callable[..., Any]:
    """``tj.jit`` where layers and activations are one call wherever oneDNN can."""

    def jit(f: Any, *before: str, dynamic: bool | None = False, **options: Any) -> Any:
        overrides = {
            "check": 2,
            "strict": True,
            "onednn": {"choose": "always", "epilogues": True} | options,
        }
        session = tj.Session(("onednn", *before, "autograd", "torch"), overrides=overrides)
        return tj.jit(f, session=session, dynamic=dynamic)

    return jit


def sources(jitted: Any) -> list[str]:
    """The text of each region."""
    regions = tj.explain(jitted).regions
    return [r.kernel.fused.source for r in regions if r.kernel.executor == "onednn_epilogues"]


def same(jitted: Any, f: Any, *args: Any) -> None:
    with torch.no_grad():
        got, expected = jitted(*args), f(*args)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "torch.relu": torch.relu,
    "written": lambda x: x.relu_(),
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu as it is": F.leaky_relu,
}

X, W, B = torch.randn(2, 5, 16) * 3, torch.randn(8, 16), torch.randn(8)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_computed_with_its_linear_layer(name: str, together: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS[name](F.linear(x, w, b))

    jitted = together(f)
    same(jitted, f, X[0] if name == "written" else X, W, B)
    (source,) = sources(jitted)
    assert source.count(" = ") == 2, f"the inputs, and one call: {source}"


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_of_images(layout: Any, together: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, b, stride=2, padding=1))

    x = torch.randn(2, 8, 9, 9).to(memory_format=layout)
    jitted = together(f)
    same(jitted, f, x, torch.randn(16, 8, 3, 3), torch.randn(16))
    assert len(sources(jitted)) == 1


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8), torch.nn.ReLU(),
            torch.nn.Linear(8, 4),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).exp()


def test_a_network_is_one_region(together: Any) -> None:
    model = Net()
    jitted = together(model)
    same(jitted, model, X)
    (source,) = sources(jitted)
    assert source.count("linear_") == 3
    assert "gelu" not in source
    assert "relu" not in source


def test_training_saves_what_it_saves_and_is_right(together: Any) -> None:
    model = Net()
    jitted = together(model)
    jitted(X).sum().backward()
    mine = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(X).sum().backward()
    torch.testing.assert_close(mine, [p.grad for p in model.parameters()])


APART: dict[str, Callable[..., Any]] = {
    "two activations": lambda x, w: (lambda y: F.relu(y) + F.gelu(y))(F.linear(x, w)),
    "no layer": lambda x, w: F.relu(x) + F.linear(x, w).sum(),
    "another in between": lambda x, w: F.relu(F.linear(x, w) * 2),
    "low precision": lambda x, w: F.relu(F.linear(x.bfloat16(), w.bfloat16())),
    "a double": lambda x, w: F.relu(F.linear(x.double(), w.double())),
}


@pytest.mark.parametrize("name", APART)
def test_others_run_apart(name: str, together: Any) -> None:
    jitted, x = together(APART[name]), torch.randn(5, 16)
    same(jitted, APART[name], x, W)
    assert sources(jitted) == []


def test_a_layer_that_others_read_is_a_call_of_its_own(together: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w)
        return y + F.relu(y)

    jitted = together(f)
    same(jitted, f, torch.randn(5, 16), W)
    (source,) = sources(jitted)
    assert source.count(" = ") == 3


def test_without_a_layer_before_it_an_activation_is_inductors(together: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(x * 2).tanh() + F.linear(x, w).mean()

    jitted = together(f, "inductor")
    same(jitted, f, torch.randn(5, 16), W)
    regions = [c for c in tj.last_trace(jitted).calls if c.symbol.path.startswith("region_")]
    inside = {c.symbol.qualname for region in regions for c in region.body.calls}
    assert {r.symbol.namespace for r in regions} == {"inductor"}
    assert "aten.gelu.default" in inside


@pytest.mark.parametrize(("ratio", "calls"), [(0.8, 1), (0.97, 2)])
def test_two_calls_are_one_where_that_is_faster(
    ratio: float, calls: int, together: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "compare", lambda *_: Times(0.001, 0.001 * ratio))

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w))

    jitted = together(f, choose="measure")
    same(jitted, f, torch.randn(64, 32), torch.randn(64, 32))
    (source,) = sources(jitted)
    assert source.count(" = ") == calls + 1
    assert ("two calls: oneDNN took 0.97" in source) is (calls == 2)


def test_sizes_that_are_symbols_run_apart(together: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w))

    jitted = together(f, dynamic=True)
    for n in (3, 4):
        same(jitted, f, torch.randn(n, 16), W)
    assert sources(jitted) == []


def test_it_is_off_unless_it_is_asked_for() -> None:
    names = [e.name for e in tj.Session(("onednn", "torch")).executors]
    assert "onednn" in names
    assert "onednn_epilogues" not in names
