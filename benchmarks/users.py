"""Workloads as users run them: decoding, dropout, autocast, a small network called many times.

``scale`` sets their size, as in `workloads`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from depth import Block
from torch import nn
from workloads import WORKLOADS, Arguments, GatedBlock, Llama, Make, rotated

__all__ = ["CASES", "Case"]

Run = Callable[[nn.Module, Any, Sequence[Arguments]], torch.Tensor]
"""Runs a step of a model by a function in its place, and returns the values to compare."""


@dataclass(frozen=True)
class Case:
    """A workload in one mode; its results may differ from eager's by ``tolerance``."""

    make: Make
    run: Run
    tolerance: float = 1e-3


def train(model: nn.Module, f: Any, calls: Sequence[Arguments]) -> torch.Tensor:
    """Run a step without an optimizer: losses and gradients."""
    for p in model.parameters():
        p.grad = None
    losses = []
    for args in calls:
        loss: torch.Tensor = f(*args)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    return torch.stack(losses)


def infer(model: nn.Module, f: Any, calls: Sequence[Arguments]) -> torch.Tensor:
    """Run forwards without gradients."""
    with torch.no_grad():
        return torch.stack([f(*args) for args in calls])


class Decoder(nn.Module):
    """A small Llama that takes one token and the keys and values of those before."""

    def __init__(self, layers: int, d: int, vocab: int, time: int) -> None:
        super().__init__()
        self.model = Llama(layers, d, 8, vocab, time)
        self.time = time

    def start(self, n: int) -> list[torch.Tensor]:
        """Arguments of the first call after the token."""
        raise NotImplementedError

    def head(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model.head(self.model.norm(x))
        return logits.square().mean()

    def projected(
        self, block: GatedBlock, x: torch.Tensor, at: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of one token at position ``at``, ``[n, heads, 1, size]``."""
        n, y = x.shape[0], block.norm1(x)
        cos, sin = self.model.cos[at], self.model.sin[at]
        q = rotated(block.q(y).view(n, 1, block.heads, block.size).transpose(1, 2), cos, sin)
        k = rotated(block.k(y).view(n, 1, block.shared, block.size).transpose(1, 2), cos, sin)
        return q, k, block.v(y).view(n, 1, block.shared, block.size).transpose(1, 2)

    def after(self, block: GatedBlock, x: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        x = x + block.o(found.transpose(1, 2).reshape(x.shape))
        y = block.norm2(x)
        return x + block.down(F.silu(block.gate(y)) * block.up(y))


class Static(Decoder):
    """Caches of the whole length, which each call writes to."""

    def start(self, n: int) -> list[torch.Tensor]:
        shape = (n, self.model.blocks[0].shared, self.time, self.model.blocks[0].size)
        caches = [torch.zeros(shape) for _ in range(2 * len(self.model.blocks))]
        return [torch.zeros(1, dtype=torch.int64), *caches]

    def forward(
        self, token: torch.Tensor, at: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = self.model.tokens(token)
        seen = torch.arange(self.time)[None] <= at
        for i, block in enumerate(self.model.blocks):
            q, k, v = self.projected(block, x, at)
            keys, values = caches[2 * i : 2 * i + 2]
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
            wide = (block.repeated(p) for p in (keys, values))
            x = self.after(block, x, F.scaled_dot_product_attention(q, *wide, attn_mask=seen))
        return self.head(x), at + 1, *caches


class Growing(Decoder):
    """Caches that are one token longer after each call."""

    def start(self, n: int) -> list[torch.Tensor]:
        shape = (n, self.model.blocks[0].shared, 2, self.model.blocks[0].size)
        return [torch.zeros(shape) for _ in range(2 * len(self.model.blocks))]

    def forward(self, token: torch.Tensor, *caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, at = self.model.tokens(token), torch.arange(caches[0].shape[2], caches[0].shape[2] + 1)
        longer = []
        for i, block in enumerate(self.model.blocks):
            q, k, v = self.projected(block, x, at)
            pairs = zip(caches[2 * i : 2 * i + 2], (k, v), strict=True)
            keys, values = (torch.cat(pair, 2) for pair in pairs)
            longer += [keys, values]
            wide = (block.repeated(p) for p in (keys, values))
            x = self.after(block, x, F.scaled_dot_product_attention(q, *wide))
        return self.head(x), *longer


def decoding(kind: type[Decoder]) -> Make:
    """A decoder, and 24 tokens for each of four texts."""

    def made(scale: float) -> tuple[nn.Module, list[Arguments]]:
        d, vocab = int(256 * scale), int(1024 * scale)
        model = kind(4, d, vocab, 64).eval()
        return model, [(torch.randint(0, vocab, (4, 1)),) for _ in range(24)]

    return made


def decode(model: Any, f: Any, calls: Sequence[Arguments]) -> torch.Tensor:
    """Run one token after the other; all results of a call but the
    first are arguments of the next.
    """
    state, found = model.start(len(calls[0][0])), []
    with torch.no_grad():
        for (token,) in calls:
            result, *state = f(token, *state)
            found.append(result)
    return torch.stack(found)


class Masked(nn.Module):
    """Attention with a mask of its own and dropout, written out; ``[n, t, d]`` in, scalar out."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        parts = self.qkv(self.norm(x)).view(n, t, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-1, -2)) * (d // self.heads) ** -0.5 + bias
        weights = F.dropout(weights.softmax(-1), 0.1, self.training)
        y = (weights @ v).transpose(1, 2).reshape(n, t, d)
        return (x + F.dropout(self.out(y), 0.1, self.training)).square().mean()


def masked(scale: float) -> tuple[nn.Module, list[Arguments]]:
    n, t, d = int(8 * scale), int(128 * scale), int(256 * scale)
    bias = torch.where(torch.rand(n, 1, t, t) < 0.2, -1e4, 0.0)
    return Masked(d, 8), [(torch.randn(n, t, d), bias)]


class Vision(nn.Module):
    """Patches, two blocks and a loss, in bfloat16 by autocast; images in, scalar out."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, d, 8, 8)
        self.layers = nn.ModuleList([Block(d, 8) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.patches(x).flatten(2).transpose(1, 2)
            for layer in self.layers:
                y = layer(y)
            return F.cross_entropy(self.head(self.norm(y).mean(1)).float(), target)


def vision(scale: float) -> tuple[nn.Module, list[Arguments]]:
    n = int(16 * scale)
    given = torch.randn(n, 3, 64, 64), torch.randint(0, 10, (n,))
    return Vision(int(256 * scale)), [given]


class Policy(nn.Module):
    """Three small layers, for one observation at a time; ``[1, 8]`` in, scalar out."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (8, 32, 32, 4)
        self.layers = nn.ModuleList(map(nn.Linear, sizes[:-1], sizes[1:]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *first, last = self.layers
        for layer in first:
            x = torch.tanh(layer(x))
        return torch.distributions.Categorical(logits=last(x), validate_args=False).entropy().sum()


def policy(scale: float) -> tuple[nn.Module, list[Arguments]]:
    return Policy(), [(torch.randn(1, 8),) for _ in range(int(10_000 * scale))]


def evaluated(make: Make) -> Make:
    """The same model in evaluation mode."""

    def made(scale: float) -> tuple[nn.Module, list[Arguments]]:
        model, calls = make(scale)
        return model.eval(), calls

    return made


CASES: dict[str, Case] = (
    {
        f"{name}, {what}": Case(make, run)
        for name, make in WORKLOADS.items()
        for what, run in (("training", train), ("inference", infer))
    }
    | {
        f"{name}, evaluation": Case(evaluated(make), infer)
        for name, make in {
            "resnet": WORKLOADS["resnet"],
            "depthwise": WORKLOADS["depthwise"],
            "masked attention with dropout": masked,
        }.items()
    }
    | {
        "decoding, static cache": Case(decoding(Static), decode),
        "decoding, growing cache": Case(decoding(Growing), decode),
        "masked attention with dropout, training": Case(masked, train, tolerance=0.05),
        "vision in bfloat16, training": Case(vision, train, tolerance=0.05),
        "vision in bfloat16, inference": Case(vision, infer, tolerance=0.05),
        "policy, inference": Case(policy, infer),
    }
)
"""Measured workloads by name."""
