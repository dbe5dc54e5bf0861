"""Encoders of transformers in evaluation: padding, for which eager makes nested tensors."""

from __future__ import annotations

import warnings

import pytest
import tj_core as tj
import torch

X = torch.randn(2, 5, 8)
PADDING = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()


def encoder() -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.filterwarnings("default:The PyTorch API of nested tensors")
@pytest.mark.parametrize("frozen", [False, True])
def test_padding_gives_zeros_as_in_eager(frozen: bool) -> None:
    network = encoder().requires_grad_(not frozen)

    def program(x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return network(x, src_key_padding_mask=padding) * 2

    jitted = tj.jit(program)
    with torch.set_grad_enabled(frozen):
        expected = program(X, PADDING)
        with pytest.warns(tj.TjWarning, match="makes nested tensors"):
            found = jitted(X, PADDING)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(jitted(X, PADDING.flip(1)), program(X, PADDING.flip(1)))
    assert not expected[0, 3:].any()


def test_an_encoder_that_needs_gradients_is_captured() -> None:
    network = encoder()
    jitted = tj.jit(network, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = jitted(X, src_key_padding_mask=PADDING)
    torch.testing.assert_close(found, network(X, src_key_padding_mask=PADDING))
