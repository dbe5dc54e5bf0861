"""Training steps of two processes under DDP, FSDP2 and tensor parallelism.

    python benchmarks/distributed.py [--ways ddp,fsdp2,tp] [--steps 40] [--width 128] [--blocks 4]
    python benchmarks/distributed.py --first 4

A GPT, a batch of 4 x 64 tokens for each process, on gloo: forward, backward, and a step of SGD with
momentum. Eager, torch.compile and tj with all its plugins for CPUs take turns, step by step, each
with a model of its own. The time of a step is that of its slower process; medians over the steps,
and of the ratios of steps that follow each other. Steps of all three must have eager's losses.

With ``--first``, so many processes make their first step at once, in an empty cache folder, and
then again in other processes, which find the folder filled: of each process the seconds of the
step, and in brackets how many regions it compiled, how many it read, and how many whole programs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tj_core as tj
import torch
import torch.nn.functional as F
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

PLUGINS = ("inductor", "onednn", "distributed", "subclass", "autocast", "autograd", "torch")
SYSTEMS = ("eager", "torch.compile", "tj")
VOCABULARY, BATCH, LENGTH, HEADS = 128, 4, 64, 4
COLUMNS, ROWS = ("q", "k", "v", "up"), ("o", "down")
WARM = 6
"""Steps of each system that do not count: they compile."""


class Block(nn.Module):
    """A transformer block whose linear layers can be split among processes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.size = width // HEADS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add attention and feed-forward layers to ``x``, ``[batch, time, width]``."""
        y = self.norm1(x)
        q, k, v = (
            f(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A GPT with its loss; tokens ``[batch, time]`` in, scalar out."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each token by those before it."""
        x = self.tokens(index) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), index.roll(-1, 1).flatten())


Compile = Callable[[nn.Module], Any]


def ddp(model: GPT, compiled: Compile) -> nn.Module:
    """Average the gradients of whole models."""
    return compiled(DistributedDataParallel(model))


def fsdp2(model: GPT, compiled: Compile) -> nn.Module:
    """Shard parameters; each block is compiled, as torchtitan does it."""
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(compiled(block))
    return fully_shard(model)


def tp(model: GPT, compiled: Compile) -> nn.Module:
    """Split the linear layers of each block."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = {name: ColwiseParallel() for name in COLUMNS}
    for block in model.blocks:
        parallelize_module(block, mesh, plan | {name: RowwiseParallel() for name in ROWS})
    return compiled(model)


WAYS = {"ddp": ddp, "fsdp2": fsdp2, "tp": tp}


def compilers() -> dict[str, Compile]:
    """A function for each system that makes a module of a module."""
    session = tj.Session(PLUGINS)
    return {
        "eager": lambda module: module,
        "torch.compile": torch.compile,
        "tj": lambda module: tj.jit(module, session=session),
    }


def work(rank: int, way: str, given: argparse.Namespace, folder: str) -> None:
    """Train as process ``rank``; write the seconds and losses of each system to ``folder``."""
    join(rank, 2, folder)
    steps: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    for name, compiled in compilers().items():
        torch.manual_seed(0)
        steps[name] = step_of(WAYS[way](GPT(given.width, given.blocks), compiled))
    torch.manual_seed(1 if way == "tp" else 1 + rank)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    names = [*steps]
    for number in range(WARM + given.steps):
        index = torch.randint(VOCABULARY, (BATCH, LENGTH))
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            distributed.barrier()
            start = time.perf_counter()
            loss = steps[name](index)
            if number >= WARM:
                seconds[name].append(time.perf_counter() - start)
            losses[name].append(loss.item())
    Path(folder, f"{rank}.json").write_text(json.dumps((seconds, losses)))
    distributed.destroy_process_group()


def join(rank: int, size: int, folder: str) -> None:
    """Make this process one of ``size`` that find each other in ``folder``."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)


def step_of(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """A training step of ``model``, which returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(index: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(index)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(way: str, given: argparse.Namespace) -> str:
    """One line: median milliseconds of the systems, and their ratios to eager."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (way, given, folder), nprocs=2)
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
    for _, losses in ranks:
        for name in SYSTEMS[1:]:
            torch.testing.assert_close(
                torch.tensor(losses[name]), torch.tensor(losses["eager"]), rtol=1e-3, atol=1e-4
            )
    slower = {
        name: [max(pair) for pair in zip(*(seconds[name] for seconds, _ in ranks), strict=True)]
        for name in SYSTEMS
    }

    def ratio(mine: str, base: str) -> float:
        pairs = zip(slower[mine], slower[base], strict=True)
        return statistics.median(a / b for a, b in pairs)

    times = ", ".join(f"{s} {statistics.median(slower[s]) * 1e3:.1f} ms" for s in SYSTEMS)
    ratios = ", ".join(f"{s} x{ratio(s, 'eager'):.2f}" for s in SYSTEMS[1:])
    return f"{way}: {times}; to eager: {ratios}; tj to torch.compile x{ratio('tj', SYSTEMS[1]):.2f}"


def begin(rank: int, way: str, given: argparse.Namespace, folder: str) -> None:
    """Make one step as process ``rank``; write its seconds and counts to ``folder``."""
    os.environ.update(TJ_CACHE_DIR=f"{folder}/tj", TORCHINDUCTOR_CACHE_DIR=f"{folder}/kernels")
    join(rank, given.first, folder)
    made: list[nn.Module] = []
    session = tj.Session(PLUGINS)

    def compiled(module: nn.Module) -> nn.Module:
        made.append(tj.jit(module, session=session))
        return made[-1]

    torch.manual_seed(0)
    step = step_of(WAYS[way](GPT(given.width, given.blocks), compiled))
    torch.manual_seed(1)
    index = torch.randint(VOCABULARY, (BATCH, LENGTH))
    distributed.barrier()
    start = time.perf_counter()
    step(index)
    seconds = time.perf_counter() - start
    found = [tj.stats(module) for module in made]
    names = ("region_misses", "region_kept", "program_kept")
    counts = [sum(getattr(stats, name) for stats in found) for name in names]
    Path(folder, f"{rank}.json").write_text(json.dumps((seconds, counts)))
    distributed.destroy_process_group()


def first(way: str, given: argparse.Namespace) -> str:
    """Two lines: first steps of processes that start at once, without and with a filled folder."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for when in ("empty folder", "filled folder"):
            multiprocessing.spawn(begin, (way, given, folder), nprocs=given.first)
            Path(folder, "store").unlink(missing_ok=True)
            said = [Path(folder, f"{rank}.json").read_text() for rank in range(given.first)]
            ranks = [json.loads(text) for text in said]
            texts = (f"{s:.1f} s ({'/'.join(map(str, counts))})" for s, counts in ranks)
            lines.append(f"{way}, {when}: {', '.join(texts)}")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, and print lines for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--first", type=int, metavar="PROCESSES")
    given = parser.parse_args()
    for way in given.ways.split(","):
        print(first(way, given) if given.first else measure(way, given), flush=True)


if __name__ == "__main__":
    main()
