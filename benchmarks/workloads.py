"""Models that are measured in training: what language and vision models and losses are made of.

``scale`` says how large they are: 1 is the size that is measured, tests take smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from depth import GPT
from torch import nn

__all__ = ["WORKLOADS"]


class Norm(nn.Module):
    """Root mean square norm, written out."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``x`` by its rotary positions."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class GatedBlock(nn.Module):
    """A block with rotary positions, shared keys and values, and a gated feed-forward part."""

    def __init__(self, d: int, heads: int, shared: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, d // heads
        self.norm1, self.norm2 = Norm(d), Norm(d)
        self.q, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.k = nn.Linear(d, shared * self.size, bias=False)
        self.v = nn.Linear(d, shared * self.size, bias=False)
        self.gate, self.up = (nn.Linear(d, 5 * d // 2, bias=False) for _ in range(2))
        self.down = nn.Linear(5 * d // 2, d, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        q = rotated(self.q(y).view(b, t, self.heads, self.size).transpose(1, 2), cos, sin)
        k = rotated(self.k(y).view(b, t, self.shared, self.size).transpose(1, 2), cos, sin)
        v = self.v(y).view(b, t, self.shared, self.size).transpose(1, 2)
        k, v = (self.repeated(p) for p in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def repeated(self, p: torch.Tensor) -> torch.Tensor:
        b, _, t, size = p.shape
        times = self.heads // self.shared
        wide = p[:, :, None].expand(b, self.shared, times, t, size)
        return wide.reshape(b, self.heads, t, size)


class Llama(nn.Module):
    """A small Llama with its loss; tokens and targets ``[batch, time]`` in, scalar out."""

    def __init__(self, layers: int, d: int, heads: int, vocab: int, time: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList([GatedBlock(d, heads, heads // 2) for _ in range(layers)])
        self.norm, self.head = Norm(d), nn.Linear(d, vocab, bias=False)
        size = d // heads
        rates = 1e4 ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(time).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(index)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))


class Perceptron(nn.Module):
    """Linear, gelu, layer norm and an elementwise chain, twice; ``[n, d]`` in, scalar out."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(d, d) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            y = norm(F.gelu(linear(x)))
            y = torch.tanh(y) * torch.sigmoid(y) + 0.5 * y
            x = x + F.silu(y * 1.5 + x) - y.abs() * 0.1
        return x.square().mean()


class Elementwise(nn.Module):
    """A layer norm, then elementwise operations only; ``[n, d]`` in, scalar out."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(d), nn.Parameter(torch.ones(d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.norm(x)) * self.weight
        for _ in range(3):
            y = F.silu((torch.tanh(y) * torch.sigmoid(y) + 0.5 * x) * 1.5)
        return y.mean()


class Residual(nn.Module):
    """Two convolutions with batch norms around which the input is added."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(made), nn.BatchNorm2d(made)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or given != made:
            conv = nn.Conv2d(given, made, 1, stride, bias=False)
            self.around = nn.Sequential(conv, nn.BatchNorm2d(made))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.around(x))


class ResNet(nn.Module):
    """A small ResNet with its loss; images ``[n, 3, h, w]`` and classes ``[n]`` in, scalar out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        shapes = [(1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)]
        self.blocks = nn.Sequential(*(Residual(width * i, width * o, s) for i, o, s in shapes))
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.blocks(F.relu(self.norm(self.stem(x))))
        return F.cross_entropy(self.head(y.mean((2, 3))), target)


class Entropies(nn.Module):
    """Softmax, its logarithm and cross entropy of one large input; ``[n, v]`` in, scalar out."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = x * 0.7 + self.bias
        spread = (F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1).mean()
        return F.cross_entropy(x, target) - 0.01 * spread


def language(make: Callable[[int, int], nn.Module]) -> Callable[[float], Any]:
    """A language model of four layers with tokens and targets."""

    def made(scale: float) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        d, vocab, time = int(256 * scale), int(1024 * scale), 32
        tokens = [torch.randint(0, vocab, (int(16 * scale), time)) for _ in range(2)]
        return make(d, vocab), tuple(tokens)

    return made


def square(make: Callable[[int], nn.Module]) -> Callable[[float], Any]:
    """A model with a square input."""

    def made(scale: float) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        d = int(1024 * scale)
        return make(d), (torch.randn(d, d),)

    return made


def resnet(scale: float) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    images, classes = torch.randn(int(16 * scale), 3, 32, 32), torch.randint(0, 10, (16,))
    return ResNet(int(32 * scale)), (images, classes[: len(images)])


def entropies(scale: float) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    n, vocab = int(512 * scale), int(8192 * scale)
    return Entropies(vocab), (torch.randn(n, vocab), torch.randint(0, vocab, (n,)))


WORKLOADS: dict[str, Callable[[float], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "gpt": language(lambda d, vocab: GPT(4, d, 8, vocab)),
    "llama": language(lambda d, vocab: Llama(4, d, 8, vocab, 32)),
    "perceptron": square(Perceptron),
    "elementwise": square(Elementwise),
    "resnet": resnet,
    "entropies": entropies,
}
"""By name, a model in training mode and its arguments, of a size."""
