"""Models that are measured in training: parts of language and vision models, and losses.

``scale`` sets their size: 1 is the size that is measured, tests take smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable

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
        x, time = self.tokens(index), index.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time])
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
    """Two convolutions with batch norms, and the input added."""

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


class Recurrent(nn.Module):
    """An embedding, two LSTM layers and a loss; tokens and targets ``[time, n]`` in, scalar out."""

    def __init__(self, d: int, vocab: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, d)
        self.layers, self.norm = nn.LSTM(d, d, 2), nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y, _ = self.layers(F.gelu(self.tokens(index)))
        return F.cross_entropy(self.head(self.norm(y)).flatten(0, 1), target.flatten())


class Unrolled(nn.Module):
    """An embedding, a GRU cell for one token after the other, and a loss; tokens and targets
    ``[time, n]`` in, scalar out.
    """

    def __init__(self, d: int, vocab: int) -> None:
        super().__init__()
        self.tokens, self.cell = nn.Embedding(vocab, d), nn.GRUCell(d, d)
        self.head = nn.Linear(d, vocab)

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(index)
        state, found = torch.zeros_like(x[0]), []
        for step in x.unbind(0):
            state = self.cell(step, state)
            found.append(state)
        return F.cross_entropy(self.head(torch.stack(found)).flatten(0, 1), target.flatten())


class Cells(nn.Module):
    """An LSTM cell that looks up one token after the other, and the sum of a loss with each.

    Tokens and targets ``[time, n]`` in, scalar out.
    """

    def __init__(self, d: int, vocab: int) -> None:
        super().__init__()
        self.tokens, self.cell = nn.Embedding(vocab, d), nn.LSTMCell(d, d)
        self.head = nn.Linear(d, vocab)

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        state, total = None, torch.zeros(())
        for t in range(index.shape[0]):
            state = self.cell(self.tokens(index[t]), state)
            total = total + F.cross_entropy(self.head(state[0]), target[t])
        return total


class Depthwise(nn.Module):
    """Three inverted residuals, depthwise convolutions inside; ``[n, c, h, w]`` in, scalar out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.block(width) for _ in range(3)])

    @staticmethod
    def block(width: int) -> nn.Module:
        wide = 4 * width
        return nn.Sequential(
            nn.Conv2d(width, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
            nn.Conv2d(wide, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


class UNet(nn.Module):
    """Downsampling, attention over all positions, upsampling with skip connections; images in,
    scalar out.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.norm1, self.norm2 = nn.GroupNorm(8, width), nn.GroupNorm(8, 2 * width)
        self.qkv, self.out = nn.Conv2d(2 * width, 6 * width, 1), nn.Conv2d(2 * width, 2 * width, 1)
        self.up = nn.Conv2d(3 * width, width, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.silu(self.norm1(x)))
        q, k, v = (p.flatten(2).transpose(1, 2) for p in self.qkv(self.norm2(y)).chunk(3, 1))
        found = F.scaled_dot_product_attention(q, k, v)
        y = y + self.out(found.transpose(1, 2).reshape(y.shape))
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        return (x + self.up(torch.cat([x, F.silu(y)], 1))).square().mean()


class Bags(nn.Module):
    """Embedding bags beside dense numbers, then layers, as in a recommender; scalar out."""

    def __init__(self, tables: int, rows: int, d: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, d, mode="sum") for _ in range(tables)])
        self.below, self.above = nn.Linear(16, d), nn.Linear((tables + 1) * d, d)
        self.head = nn.Linear(d, 1)

    def forward(self, numbers: torch.Tensor, *bags: torch.Tensor) -> torch.Tensor:
        found = [table(bag) for table, bag in zip(self.tables, bags, strict=True)]
        y = torch.cat([F.relu(self.below(numbers)), *found], -1)
        return torch.sigmoid(self.head(F.relu(self.above(y)))).mean()


Arguments = tuple[torch.Tensor, ...]
Make = Callable[[float], tuple[nn.Module, list[Arguments]]]


def language(make: Callable[[int, int], nn.Module]) -> Make:
    """A language model of four layers with tokens and targets."""

    def made(scale: float) -> tuple[nn.Module, list[Arguments]]:
        d, vocab, time = int(256 * scale), int(1024 * scale), 32
        tokens = [torch.randint(0, vocab, (int(16 * scale), time)) for _ in range(2)]
        return make(d, vocab), [tuple(tokens)]

    return made


def lengths(scale: float) -> tuple[nn.Module, list[Arguments]]:
    """A language model with batches of eight lengths."""
    d, vocab = int(256 * scale), int(1024 * scale)
    times = (32, 24, 17, 29, 12, 21, 31, 9)
    shapes = [(int(16 * scale), time) for time in times]
    batches = [tuple(torch.randint(0, vocab, shape) for _ in range(2)) for shape in shapes]
    return Llama(2, d, 8, vocab, 32), batches


def recurrent(make: Callable[[int, int], nn.Module]) -> Make:
    """A language model with one token after the other."""

    def made(scale: float) -> tuple[nn.Module, list[Arguments]]:
        d, vocab = int(256 * scale), int(1024 * scale)
        tokens = tuple(torch.randint(0, vocab, (32, int(16 * scale))) for _ in range(2))
        return make(d, vocab), [tokens]

    return made


def pictures(make: Callable[[int], nn.Module], channels_last: bool) -> Make:
    """Make an image model with 32 channels, optionally in channels_last."""

    def made(scale: float) -> tuple[nn.Module, list[Arguments]]:
        width = int(32 * scale)
        model, x = make(width), torch.randn(int(8 * scale), width, 32, 32)
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
            model = model.to(memory_format=torch.channels_last)
        return model, [(x,)]

    return made


def bags(scale: float) -> tuple[nn.Module, list[Arguments]]:
    n, rows = int(512 * scale), int(4096 * scale)
    given = [torch.randint(0, rows, (n, 8)) for _ in range(6)]
    return Bags(6, rows, int(64 * scale)), [(torch.randn(n, 16), *given)]


def square(make: Callable[[int], nn.Module]) -> Make:
    """A model with a square input."""

    def made(scale: float) -> tuple[nn.Module, list[Arguments]]:
        d = int(1024 * scale)
        return make(d), [(torch.randn(d, d),)]

    return made


def resnet(scale: float) -> tuple[nn.Module, list[Arguments]]:
    images, classes = torch.randn(int(16 * scale), 3, 32, 32), torch.randint(0, 10, (16,))
    return ResNet(int(32 * scale)), [(images, classes[: len(images)])]


def entropies(scale: float) -> tuple[nn.Module, list[Arguments]]:
    n, vocab = int(512 * scale), int(8192 * scale)
    return Entropies(vocab), [(torch.randn(n, vocab), torch.randint(0, vocab, (n,)))]


WORKLOADS: dict[str, Make] = {
    "gpt": language(lambda d, vocab: GPT(4, d, 8, vocab)),
    "llama": language(lambda d, vocab: Llama(4, d, 8, vocab, 32)),
    "perceptron": square(Perceptron),
    "elementwise": square(Elementwise),
    "resnet": resnet,
    "entropies": entropies,
    "lengths": lengths,
    "lstm": recurrent(Recurrent),
    "gru": recurrent(Unrolled),
    "cells": recurrent(Cells),
    "depthwise": pictures(Depthwise, channels_last=True),
    "unet": pictures(UNet, channels_last=False),
    "bags": bags,
}
"""Makers by name: functions of a scale to a model in training mode and the arguments of the calls
of one step.
"""
