"""Networks whose sequences, heads or words are shared by two processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from torch import distributed as dist
from torch import nn
from torch.autograd.profiler import profile
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

Tensor = torch.Tensor
PLUGINS = ["torch", "autograd", "autocast", "subclass", "distributed"]
WORDS, WIDTH, HEADS, LENGTH = 16, 8, 4, 6
"""Sizes of the networks; each process has ``LENGTH`` places of a sequence."""


def exchanged(x: Tensor, scatter: int, gather: int) -> Tensor:
    """``x`` with dimension ``scatter`` shared by the processes, and all of ``gather`` on each."""
    count = dist.get_world_size()
    parts = torch.stack(x.chunk(count, scatter)).contiguous()
    given = collectives.all_to_all_single_autograd(parts, None, None, dist.group.WORLD)
    return torch.cat(given.unbind(0), gather)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of shape (batch, heads, places, width of a head)."""
        mixed = self.mixed(x).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v


class Ulysses(Attention):
    """Each process has some places of all heads, and for the attention all places of some heads."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (exchanged(t, 1, 2) for t in self.heads(x))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(exchanged(found, 2, 1).transpose(1, 2).flatten(2))


class Ring(Attention):
    """Keys and values go round; what each process finds is weighted by its sum of exponentials."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        count, rank = dist.get_world_size(), dist.get_rank()
        most = torch.full((*q.shape[:-1], 1), -torch.inf)
        total, found = torch.zeros_like(most), torch.zeros_like(q)
        for step in range(count):
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            top = torch.maximum(most, scores.amax(-1, keepdim=True)).detach()
            parts, old = (scores - top).exp(), (most - top).exp()
            total = total * old + parts.sum(-1, keepdim=True)
            found, most = found * old + parts @ v, top
            if step + 1 < count:
                k, v = (self.passed(t, rank, count) for t in (k, v))
        return self.out((found / total).transpose(1, 2).flatten(2))

    def passed(self, x: Tensor, rank: int, count: int) -> Tensor:
        """Receive from the process before, and send ``x`` to the next."""
        rows = x.shape[0]
        sizes = [[rows * (i == (rank + way) % count) for i in range(count)] for way in (-1, 1)]
        return collectives.all_to_all_single_autograd(x.contiguous(), *sizes, dist.group.WORLD)


class Words(nn.Module):
    """A network whose loss is computed from shards of the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        h = self.embed(words)
        return self.out(h + self.down(F.silu(self.up(self.norm(h)))))


class Mixed(nn.Module):
    """A layer with a replicated result, before one of shards."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.down(self.up(x).relu())))


def mixed() -> tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]:
    whole = PrepareModuleInput(
        input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
    )
    plan: Any = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(use_local_output=False),
        "norm": SequenceParallel(use_local_output=False),
        "out": whole,
    }
    model = parallelize_module(Mixed(), init_device_mesh("cpu", (2,)), plan)

    def inputs(step: int) -> tuple[Tensor, ...]:
        torch.manual_seed(step)
        return (torch.randn(2, 4, WIDTH, requires_grad=True),)

    return model, inputs


def words(sequence: bool) -> Words:
    """``Words``, with words and sequence shared between products, or each value whole."""
    model = Words()
    place = Shard(1) if sequence else Replicate()
    plan: Any = {
        "up": ColwiseParallel(input_layouts=place),
        "down": RowwiseParallel(output_layouts=place, use_local_output=not sequence),
        "out": ColwiseParallel(
            input_layouts=place, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if sequence:
        plan["norm"] = SequenceParallel()
        plan["embed"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=place, use_local_output=False
        )
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    return model


def tied() -> nn.Module:
    """``Words`` that embeds with the weight of its last layer: each process has half of the words.

    `parallelize_module` makes a new parameter of each weight, so they are tied afterwards.
    """
    model = words(False)
    plan = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    parallelize_module(model.embed, init_device_mesh("cpu", (2,)), plan)
    model.embed.weight = model.out.weight
    return model


def embedding() -> nn.Module:
    """An embedding by itself, whose result nobody has waited for when it is returned."""
    plan = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    return parallelize_module(nn.Embedding(WORDS, WIDTH), init_device_mesh("cpu", (2,)), plan)


def long_sequences(kind: type[Attention]) -> tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]:
    def inputs(step: int) -> tuple[Tensor, ...]:
        torch.manual_seed(10 * step + dist.get_rank())
        return (torch.randn(2, LENGTH, WIDTH, requires_grad=True),)

    return kind(), inputs


def sentences(
    model: nn.Module, count: int = 2
) -> tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]:
    def inputs(step: int) -> tuple[Tensor, ...]:
        torch.manual_seed(step)
        return tuple(torch.randint(WORDS, (2, 4)) for _ in range(count))

    return model, inputs


MADE: dict[str, Callable[[], Any]] = {
    "ulysses": lambda: long_sequences(Ulysses),
    "ring": lambda: long_sequences(Ring),
    "mixed": mixed,
    "loss": lambda: sentences(words(False)),
    "loss and sequence": lambda: sentences(words(True)),
    "tied": lambda: sentences(tied()),
    "embedding": lambda: sentences(embedding(), 1),
}


def _loss(model: Any, *inputs: Tensor) -> Tensor:
    if len(inputs) == 1:
        return model(*inputs).square().sum()
    return F.cross_entropy(model(inputs[0]).flatten(0, 1), inputs[1].flatten())


def _trained(name: str, jit: str, **options: Any) -> tuple[list[Any], list[str], list[Any]]:
    """Losses, gradients and parameters of three steps, what gloo ran, and what is jitted."""
    torch.manual_seed(0)
    model, inputs = MADE[name]()
    called = tj.jit(model, plugins=PLUGINS, **options) if jit == "model" else model
    loss_of = tj.jit(_loss, plugins=PLUGINS, **options) if jit == "loss" else _loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    with profile(use_kineto=False) as seen, loss_parallel():
        for step in range(3):
            given = inputs(step)
            loss = loss_of(called, *given)
            loss.backward()
            grads = [p.grad for p in (*given, *model.parameters()) if p.grad is not None]
            found += [whole(t.detach()).clone() for t in (loss, *grads)]
            optimizer.step()
            optimizer.zero_grad()
    jitted = [f for f, yes in ((called, jit == "model"), (loss_of, jit == "loss")) if yes]
    return found, [e.name for e in seen.function_events if e.name.startswith("gloo:")], jitted


def whole(x: Tensor) -> Tensor:
    """The part of ``x`` that this process has."""
    return x.to_local() if hasattr(x, "to_local") else x


def returned(name: str) -> list[str]:
    """Types of what the model ``name`` returns, in eager and jitted."""
    torch.compiler.reset()
    model, inputs = MADE[name]()
    (given,) = inputs(0)
    return [type(f(given)).__name__ for f in (model, tj.jit(model, plugins=PLUGINS))]


def _starts(trace: Any) -> list[str]:
    """Names of the collectives that ``trace`` starts, in order."""
    names = [call.symbol.name for call in trace.walk() if "c10d" in call.symbol.qualname]
    return [name for name in names if "wait" not in name]


def compared(name: str, jit: str, merge: bool = False) -> dict[str, Any]:
    """Three steps in eager, and with the model or the function of the loss jitted."""
    options = {"distributed": {"merge_redistributions": True}} if merge else {}
    torch.compiler.reset()
    eager, ran, _ = _trained(name, "")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, also, jitted = _trained(name, jit, **options)
    return {
        "eager": eager,
        "jitted": found,
        "ran": (ran, also),
        "said": [str(w.message) for w in said if issubclass(w.category, tj.TjWarning)],
        "entries": [tj.stats(f).entries for f in jitted],
        "joint": ["without joint" not in str(tj.explain(f)) for f in jitted],
        "starts": [_starts(tj.last_trace(f)) for f in jitted],
    }
