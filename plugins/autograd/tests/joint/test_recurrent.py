"""`nn.LSTM`, `nn.GRU` and `nn.RNN` are calls of the program, with eager's values and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from tj_conformance.sampling import pairwise
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

pytestmark = pytest.mark.sampled(8)

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layers": {"num_layers": 2, "batch_first": True},
    "both ways": {"bidirectional": True, "num_layers": 2},
    "dropout": {"num_layers": 2, "dropout": 0.5},
    "no bias": {"bias": False, "batch_first": True},
    "double": {"dtype": torch.float64},
}


class Network(nn.Module):
    """A recurrent layer between two others; it may begin with a state."""

    def __init__(self, kind: str, options: dict[str, Any], *, state: bool = False) -> None:
        super().__init__()
        dtype = options.get("dtype", torch.float32)
        self.before = nn.Linear(8, 8, dtype=dtype)
        self.recurrent = KINDS[kind](8, 6, **options)
        width = options.get("proj_size", 6) * (2 if self.recurrent.bidirectional else 1)
        self.after = nn.Linear(width, 3, dtype=dtype)
        self.state = state

    def forward(self, x: torch.Tensor) -> Any:
        x = self.before(x).relu()
        first = self.first(x) if self.state else ()
        y, last = self.recurrent(x, *first)
        return self.after(y).tanh(), last

    def first(self, x: torch.Tensor) -> tuple[Any]:
        layer = self.recurrent
        rows = () if x.dim() == 2 else (x.shape[0 if layer.batch_first else 1],)
        shape = (layer.num_layers * (2 if layer.bidirectional else 1), *rows, layer.hidden_size)
        h = x.new_ones(shape)
        return ((h, h * 2),) if isinstance(layer, nn.LSTM) else (h,)


def steps(model: nn.Module, run: Any, *args: Any) -> list[Any]:
    """Results of two training steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        out = run(*args)
        leaves = torch.utils._pytree.tree_leaves(out)
        sum(t.square().sum() for t in leaves if t.is_floating_point()).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append((out, {n: p.detach().clone() for n, p in model.named_parameters()}))
    return found


def trained_equally(model: nn.Module, *args: Any) -> Any:
    twin = copy.deepcopy(model)
    jitted = tj.jit(twin)
    assert_equal(steps(twin, jitted, *args), steps(model, model, *args))
    assert (tj.stats(jitted).entries, tj.stats(jitted).fallbacks) == (1, ())
    return jitted


@pytest.mark.parametrize(**pairwise(kind=KINDS, option=OPTIONS, state=(False, True)))
def test_training(kind: str, option: str, state: bool) -> None:
    options = OPTIONS[option]
    dtype = options.get("dtype", torch.float32)
    model = Network(kind, options, state=state)
    jitted = trained_equally(model, torch.randn(5, 4, 8, dtype=dtype))
    names = [call.symbol.qualname for call in tj.last_traces(jitted)[0].calls]
    assert any(name.startswith(("torch.lstm", "torch.gru", "torch.rnn")) for name in names), names


def test_projections() -> None:
    trained_equally(Network("LSTM", {"proj_size": 4}), torch.randn(5, 4, 8))


def test_one_sequence_without_a_batch() -> None:
    trained_equally(Network("LSTM", {}), torch.randn(5, 8))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = KINDS[kind](8, 6, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            y, _ = self.recurrent(packed)
            return pad_packed_sequence(y, batch_first=True)[0].cos()

    model = Packed()
    x, lengths = torch.randn(3, 5, 8), torch.tensor([2, 5, 3])
    twin = copy.deepcopy(model)
    with pytest.warns(tj.TjWarning, match="graph break|_VF|pack|data") as caught:
        got = steps(twin, tj.jit(twin), x, lengths)
    assert_equal(got, steps(model, model, x, lengths))
    assert len(caught) <= 3, [str(w.message) for w in caught]


@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients_and_with_other_sizes(kind: str) -> None:
    model = Network(kind, {"num_layers": 2, "dropout": 0.5}).eval()
    jitted = tj.jit(model)
    for length, rows in ((5, 4), (7, 4), (3, 2)):
        x = torch.randn(length, rows, 8)
        with torch.no_grad():
            assert_equal(jitted(x), model(x))
    assert tj.stats(jitted).fallbacks == ()


def test_a_parameter_that_is_replaced_is_used() -> None:
    model = Network("LSTM", {})
    jitted = tj.jit(model)
    x = torch.randn(5, 4, 8)
    assert_equal(jitted(x), model(x))
    model.recurrent.weight_hh_l0 = nn.Parameter(torch.randn_like(model.recurrent.weight_hh_l0))
    assert_equal(jitted(x), model(x))
    model.double()
    assert_equal(jitted(x.double()), model(x.double()))


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
