"""Gradients whose layouts have symbols that the call they come to lacks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch
from torch.nn import functional as F


class Heads(torch.nn.Module):
    """Attention whose size of a head is an attribute: a symbol with ``dynamic=True``."""

    def __init__(self, laid_out: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.size = 16
        self.laid_out = laid_out
        self.layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = (*x.shape[:-1], -1, self.size)
        q, k, v = (
            self.laid_out((layer(x) * 0.5).view(*sizes).transpose(1, 2)) for layer in self.layers
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)  # its keys are transposed
        return y.transpose(1, 2).reshape(*x.shape[:-1], -1).contiguous()


@pytest.mark.parametrize("laid_out", [torch.Tensor.contiguous, lambda x: x], ids=["copied", "not"])
def test_heads(laid_out: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch._dynamo.reset()
    model = Heads(laid_out)
    # As users have it: the verifier cannot tell that `(64//s)*(64//(64//s))` is 64, and refuses it.
    jitted = tj.jit(model, dynamic=True, plugins=["torch", "autograd"], check=0)
    for rows, length in ((2, 5), (3, 7), (2, 9)):
        x = torch.randn(rows, length, 64)
        found = []
        for f in (jitted, model):
            leaf = x.clone().requires_grad_()
            model.zero_grad()
            torch.manual_seed(0)
            f(leaf).square().sum().backward()
            assert leaf.grad is not None
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            found.append([leaf.grad, *gradients])
        torch.testing.assert_close(*found)
    assert tj.stats(jitted).misses == 1
    assert tj.stats(jitted).fallbacks == ()
