"""Transformers of `torch.nn` with masks: captured where these are causal."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.sampled(2)

LAYER: dict[str, Any] = {"dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
X, Y = torch.randn(2, 3, 4), torch.randn(2, 5, 4)


def mask(size: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(size)


def booleans(size: int) -> Tensor:
    return torch.ones(size, size).triu(1).bool()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, **LAYER)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def decoder() -> nn.Module:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, **LAYER), 1)


def both() -> nn.Module:
    return nn.Transformer(4, 2, 1, 1, **LAYER)


Call = tuple[tuple[Tensor, ...], dict[str, Any]]

CAUSAL: dict[str, tuple[Any, list[Call]]] = {
    "encoder": (encoder, [((X, mask(3)), {}), ((Y, mask(5)), {}), ((X, mask(3)), {})]),
    "encoder, booleans": (encoder, [((X, booleans(3)), {}), ((Y, booleans(5)), {})]),
    "encoder, one token": (encoder, [((X[:, :1], mask(1)), {}), ((X, mask(3)), {})]),
    "encoder, no mask": (encoder, [((X,), {}), ((Y,), {})]),
    "encoder, told": (encoder, [((X, mask(3)), {"is_causal": True})]),
    "encoder, of heads": (encoder, [((X, mask(3).expand(4, 3, 3)), {})]),
    "encoder, padding": (encoder, [((X, mask(3)), {"src_key_padding_mask": torch.zeros(2, 3)})]),
    "decoder": (decoder, [((Y, X), {"tgt_mask": mask(5)}), ((X, Y), {"tgt_mask": mask(3)})]),
    "both": (both, [((X, Y), {"tgt_mask": mask(5)}), ((Y, X), {"tgt_mask": mask(3)})]),
}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks(name: str, train: bool) -> None:
    make, calls = CAUSAL[name]
    module = make().train(train)
    jitted = tj.jit(module)
    with torch.set_grad_enabled(train):
        for args, kwargs in calls:
            torch.testing.assert_close(jitted(*args, **kwargs), module(*args, **kwargs))
    assert tj.stats(jitted).fallbacks == ()


def test_other_masks_run_as_they_are() -> None:
    module = encoder()
    jitted, other = tj.jit(module, strict=False), mask(3).t().contiguous()
    torch.testing.assert_close(jitted(X, mask(3)), module(X, mask(3)))
    with pytest.warns(tj.TjWarning, match="a mask of its attention is not causal"):
        torch.testing.assert_close(jitted(X, other), module(X, other))
    torch.testing.assert_close(jitted(X, mask(3)), module(X, mask(3)))
    assert tj.stats(jitted).misses == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for _ in range(20):
            torch.testing.assert_close(jitted(X, torch.zeros(3, 3)), module(X, torch.zeros(3, 3)))
    assert "graph break" in tj.stats(jitted).fallbacks[-1].reason
