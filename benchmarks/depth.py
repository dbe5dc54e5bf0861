"""Compile time against depth: cost of tj's own passes as a model gets more equal layers.

    python benchmarks/depth.py [--layers 2,4,8,16] [--rounds 5]

Expansion is remembered between equal calls, so its seconds must not grow with depth; capture and
the passes over the trace may. Each depth is compiled in a session of its own; depths take turns,
and medians over the rounds are shown.
"""

from __future__ import annotations

import argparse
import statistics
import time

import tj_core as tj
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A pre-norm transformer block of width ``d`` with ``h`` heads."""

    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            y.view(b, t, self.h, d // self.h).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).split(d, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small GPT with its loss; tokens and targets ``[batch, time]`` in, scalar out."""

    def __init__(
        self, layers: int, d: int = 64, h: int = 4, vocab: int = 128, time: int = 32
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, d), nn.Embedding(time, d)
        self.blocks = nn.ModuleList([Block(d, h) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(index.shape[1], device=index.device)
        x = self.tokens(index) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))


def measure(layers: int) -> dict[str, float]:
    """Seconds of the first call of a model with ``layers`` layers: in total and by pass."""
    torch.manual_seed(0)
    model = GPT(layers)
    index, target = torch.randint(0, 128, (2, 32)), torch.randint(0, 128, (2, 32))
    jitted = tj.jit(model, session=tj.Session())
    start = time.perf_counter()
    jitted(index, target)
    total = time.perf_counter() - start
    stats = tj.stats(jitted)
    return {
        "total": total,
        **stats.seconds,
        "memo hits": stats.memo_hits,
        "memo misses": stats.memo_misses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="2,4,8,16")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    depths = [int(n) for n in arguments.layers.split(",")]
    measure(1)  # imports, first use of everything
    rounds = [{n: measure(n) for n in depths} for _ in range(arguments.rounds)]
    for n in depths:
        medians = {k: statistics.median(r[n].get(k, 0) for r in rounds) for k in rounds[0][n]}
        print(n, ", ".join(f"{k} {v:.4g}" for k, v in medians.items()), flush=True)
    expand = [statistics.median(r[n]["expand"] for r in rounds) for n in (depths[0], depths[-1])]
    print(f"expand, {depths[-1]} layers to {depths[0]}: x{expand[1] / expand[0]:.2f}")


if __name__ == "__main__":
    main()
