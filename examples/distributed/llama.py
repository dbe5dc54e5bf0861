"""A small Llama: root mean square norms, rotary positions, gated feed-forward layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Block", "Llama", "batch"]

VOCABULARY, LENGTH = 64, 16
WIDTH, HEADS, LAYERS = 32, 4, 2


class Attention(nn.Module):
    """Causal attention. With tensor parallelism each rank has some of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        steps = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(0, WIDTH // HEADS, 2) / 8)
        self.register_buffer("cos", steps.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", steps.sin().repeat(1, 2), persistent=False)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """A gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add each layer's result to its input."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    """The loss of predicting each token from those before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens ``(batch, LENGTH + 1)`` to the mean loss."""
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def batch(step: int, part: int) -> torch.Tensor:
    """Four sequences that count up in steps of their own; ``part`` tells ranks apart."""
    generator = torch.Generator().manual_seed(1000 * step + part)
    start, stride = torch.randint(1, VOCABULARY, (2, 4, 1), generator=generator)
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
