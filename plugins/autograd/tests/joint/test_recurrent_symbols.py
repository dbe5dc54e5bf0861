"""An LSTM over symbolic sizes."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch

pytestmark = pytest.mark.sampled(16)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_an_lstm_with_projections_over_symbols() -> None:
    """Its gates are chunks of the weights: what the sizes of its cell are, guards say."""
    net = torch.nn.LSTM(2, 3, num_layers=2, proj_size=2, batch_first=True, bias=False)

    def f(weights: Any, x: torch.Tensor) -> Any:
        return torch.func.functional_call(net, weights, (x,))[0]

    weights = {k: p.detach().clone().requires_grad_() for k, p in net.named_parameters()}
    x = torch.randn(2, 2)
    jitted = tj.jit(f, dynamic=True, plugins=("torch", "autograd"), check=2)
    jitted(weights, x).sum().backward()
    expected = torch.autograd.grad(f(weights, x).sum(), list(weights.values()))
    assert all(map(torch.equal, [p.grad for p in weights.values()], expected))
