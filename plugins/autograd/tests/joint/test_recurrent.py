"""`nn.LSTM`, `nn.GRU` and `nn.RNN` are calls of the program, with eager's values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from tj_conformance.sampling import pairwise
from tj_suites.gradients.recurrent import KINDS, Network, trained_equally
from torch import nn

pytestmark = pytest.mark.sampled(16)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layers": {"num_layers": 2, "batch_first": True},
    "both ways": {"bidirectional": True, "num_layers": 2},
    "dropout": {"num_layers": 2, "dropout": 0.5},
    "no bias": {"bias": False, "batch_first": True},
    "double": {"dtype": torch.float64},
}


@pytest.mark.parametrize(**pairwise(kind=KINDS, option=OPTIONS, state=(False, True)))
def test_training(kind: str, option: str, state: bool) -> None:
    options = OPTIONS[option]
    dtype = options.get("dtype", torch.float32)
    model = Network(kind, options, state=state)
    jitted = trained_equally(model, torch.randn(5, 4, 8, dtype=dtype))
    names = [call.symbol.qualname for call in tj.last_traces(jitted)[0].calls]
    assert any(name.startswith(("torch.lstm", "torch.gru", "torch.rnn")) for name in names), names


def test_a_parameter_that_is_replaced_is_used() -> None:
    model = Network("LSTM", {})
    jitted = tj.jit(model)
    x = torch.randn(5, 4, 8)
    assert_equal(jitted(x), model(x))
    model.recurrent.weight_hh_l0 = nn.Parameter(torch.randn_like(model.recurrent.weight_hh_l0))
    assert_equal(jitted(x), model(x))
    model.double()
    assert_equal(jitted(x.double()), model(x.double()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_alone_is_left_to_pytorch(kind: str) -> None:
    """A node of tj's would run the graph that PyTorch's autograd has recorded, and add its time."""
    model = getattr(nn, kind)(4, 4)
    jitted, x = tj.jit(model), torch.randn(3, 2, 4)
    found = []
    for fn in (model, jitted):
        output, state = fn(x)
        output.sum().backward()
        found.append((output, state, [p.grad for p in model.parameters()]))
        model.zero_grad()
    assert_equal(*found)
    assert "has to record all calls" in str(tj.explain(jitted))


def test_a_package_of_a_network_alone_has_gradients() -> None:
    model, x = nn.GRU(4, 4), torch.randn(3, 2, 4)
    model(x)[0].sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    package = tj.export(model, (x,), training=True)
    package(x)[0].sum().backward()
    assert_equal([p.grad for p in package.parameters()], expected)


class Loss(Network):
    """One result, so that without a cut the whole program would be one node."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = super().forward(x)
        return y.square().mean()


def test_gradients_behind_have_arrived_when_the_backward_of_the_network_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise they would take memory during its backward, until all are handed on together."""
    model, order = Loss("LSTM", {}), []
    for name in ("before", "after"):
        weight = getattr(model, name).weight
        weight.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    loss, plain = tj.jit(model)(torch.randn(5, 4, 8)), torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        order.append("recurrent")
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    loss.backward()
    assert order == ["after", "recurrent", "before"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_networks_in_a_program_with_one_result(kind: str) -> None:
    """The calls behind both are one segment, the others another."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (Network(kind, {"bias": False}) for _ in range(2))
            self.between, self.after = nn.Linear(3, 8), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, last = self.first(x)
            z, _ = self.second(self.between(y))
            last = last[0] if isinstance(last, tuple) else last
            return self.after(z + y).square().mean() + last.sin().mean()

    jitted = trained_equally(Two(), torch.randn(5, 4, 8))
    names = [c.symbol.qualname for c in tj.last_trace(jitted, "backward.1").calls]
    assert names.count("tj_autograd.joint.recordings.backward") == 0
    names = [c.symbol.qualname for c in tj.last_trace(jitted, "backward").calls]
    assert names.count("tj_autograd.joint.recordings.backward") == 2


def test_what_is_frozen_ends_no_segment() -> None:
    model = Loss("LSTM", {})
    for p in (*model.before.parameters(), *model.recurrent.parameters()):
        p.requires_grad_(False)
    jitted = tj.jit(model)
    jitted(torch.randn(5, 4, 8)).backward()
    assert model.after.weight.grad is not None
    with pytest.raises(tj.TjError):
        tj.last_trace(jitted, "backward.1")


def test_a_graph_that_is_kept_and_gradients_of_gradients() -> None:
    """On a program of one result, whose backward is two nodes."""
    model, x = Loss("GRU", {"dtype": torch.float64}), torch.randn(5, 4, 8, dtype=torch.float64)
    found = []
    for f in (tj.jit(model), model):
        weights = model.before.weight, model.after.weight
        loss = f(x)
        again = [torch.autograd.grad(loss, w, retain_graph=True)[0] for w in (*weights, *weights)]
        first = torch.autograd.grad(loss, weights, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), weights)
        found.append((*again, *first, *second))
    torch.testing.assert_close(*found)
