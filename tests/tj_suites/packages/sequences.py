"""Transformers of x-transformers: decoders and encoders, with its ways to tell positions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tj_suites.packages.network import Network, Package

__all__ = ["X_TRANSFORMERS"]

TOKENS, LENGTH = 64, 8
_LAYERS = {"dim": 32, "depth": 2, "heads": 2, "attn_dim_head": 32}


def tokens() -> tuple[torch.Tensor, ...]:
    """Token ids: int64 [2, length]."""
    return (torch.randint(0, TOKENS, (2, LENGTH)),)


def translation() -> tuple[torch.Tensor, ...]:
    """Token ids of two languages."""
    return *tokens(), *tokens()


def _x() -> Any:
    return importlib.import_module("x_transformers")


def language(kind: str, **options: Any) -> Callable[[], nn.Module]:
    """Embedding, layers of ``kind`` and logits."""

    def build() -> nn.Module:
        layers = getattr(_x(), kind)(**_LAYERS, **options)
        model: nn.Module = _x().TransformerWrapper(
            num_tokens=TOKENS, max_seq_len=2 * LENGTH, attn_layers=layers
        )
        return model

    return build


def autoregressive() -> nn.Module:
    """A decoder that computes its own loss."""
    model: nn.Module = _x().AutoregressiveWrapper(language("Decoder", rel_pos_bias=True)())
    return model


def encoder_decoder() -> nn.Module:
    """An encoder, and a decoder that looks at it."""
    sides = {"num_tokens": TOKENS, "depth": 1, "heads": 2, "max_seq_len": 2 * LENGTH}
    both = {f"{side}_{k}": v for side in ("enc", "dec") for k, v in sides.items()}
    model: nn.Module = _x().XTransformer(dim=32, **both)
    return model


class Masked(nn.Module):
    """An encoder that is told how long each row is, and has memories of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = language("Encoder", attn_num_mem_kv=2)()

    def forward(self, ids: torch.Tensor) -> Any:
        lengths = torch.tensor([[LENGTH], [LENGTH - 3]])
        return self.encoder(ids, mask=torch.arange(LENGTH) < lengths)


X_TRANSFORMERS = Package(
    "x-transformers",
    "2.31.10",
    (
        Network("decoder", language("Decoder", attn_dropout=0.1, ff_dropout=0.1), tokens),
        Network(
            "decoder, rotary",
            language("Decoder", rotary_pos_emb=True, use_rmsnorm=True),
            tokens,
        ),
        Network("decoder, ALiBi", language("Decoder", alibi_pos_bias=True), tokens),
        Network(
            "decoder, fused attention",
            language("Decoder", attn_flash=True, ff_glu=True, ff_swish=True),
            tokens,
        ),
        Network("decoder with its loss, T5's bias", autoregressive, tokens),
        Network("encoder with a mask", Masked, tokens),
        Network("encoder and decoder", encoder_decoder, translation),
    ),
)
