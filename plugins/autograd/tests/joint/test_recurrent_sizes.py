"""`nn.LSTM`, `nn.GRU` and `nn.RNN` with packed sequences, other sizes, projections."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from tj_suites.gradients.recurrent import KINDS, Network, steps, trained_equally
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

pytestmark = pytest.mark.sampled(16)


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients_and_with_other_sizes(kind: str) -> None:
    model = Network(kind, {"num_layers": 2, "dropout": 0.5}).eval()
    jitted = tj.jit(model)
    for length, rows in ((5, 4), (7, 4), (3, 2)):
        x = torch.randn(length, rows, 8)
        with torch.no_grad():
            assert_equal(jitted(x), model(x))
    assert tj.stats(jitted).fallbacks == ()
