"""Programs of ``DTensor``, on one process or several, which exchange data by gloo.

``python tests/tj_suites subclasses.distributed [PROCESSES]`` runs them all and compares each with
eager on every process, with the order of the collectives that it starts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.case import Case, Cases, Verdict, evaluate, observe
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

__all__ = ["PROGRAMS", "group", "main", "verdicts"]

PROGRAMS = Cases()

Placements = Sequence[Any]


def mesh() -> DeviceMesh:
    """All processes in a row."""
    return init_device_mesh("cpu", (distributed.get_world_size(),))


def given(placements: Placements, *shape: int, grad: bool = False) -> Callable[[], Any]:
    """Makes a distributed tensor, the same whole on all processes."""
    return lambda: distribute_tensor(torch.randn(*shape), mesh(), placements).requires_grad_(grad)


ROWS, COLUMNS, WHOLE = [Shard(0)], [Shard(1)], [Replicate()]

# --------------------------------------------------------------------------- functions


@PROGRAMS(given(ROWS, 4, 6), given(ROWS, 4, 6))
def elementwise(x: Any, y: Any) -> Any:
    return (x * y).sin() + 1


@PROGRAMS(given(ROWS, 4, 6, grad=True), given(WHOLE, 6, 6, grad=True))
def product(x: Any, w: Any) -> Any:
    return (x @ w).relu()


@PROGRAMS(given(WHOLE, 4, 6), given(ROWS, 8, 6, grad=True), given(ROWS, 8, grad=True))
def linear_by_rows(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w, b)


@PROGRAMS(given(COLUMNS, 4, 6), given(COLUMNS, 8, 6, grad=True))
def linear_by_columns(x: Any, w: Any) -> Any:
    y: Any = F.linear(x, w)
    return y.redistribute(placements=WHOLE)


@PROGRAMS(given(ROWS, 4, 6, grad=True), given(WHOLE, 6, grad=True), given(WHOLE, 6))
def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, (6,), w, b)


@PROGRAMS(given(ROWS, 4, 6, grad=True))
def softmax_of_shards(x: Any) -> Any:
    return x.softmax(-1), x.sum(), x.mean(0)


@PROGRAMS(given(ROWS, 4, 6, grad=True))
def sum_of_shards(x: Any) -> Any:
    """A partial result: its sum over processes has not been taken."""
    return (x * 2).sum(0)


@PROGRAMS(given(ROWS, 4, 6, grad=True))
def redistributed(x: Any) -> Any:
    y: Any = (x * 2).redistribute(placements=COLUMNS)
    return y.sin(), y.redistribute(placements=WHOLE)


@PROGRAMS(given(ROWS, 4, 6), lambda: torch.tensor(2.0), lambda: torch.tensor(3.0))
def numbers_that_tensors_hold(x: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    """Two calls that differ in nothing but the symbol of a number."""
    return x / a.item(), x / b.item()


@PROGRAMS(given(ROWS, 4, 6, grad=True))
def to_local(x: Any) -> Any:
    y: Any = x + 1
    local: Any = x
    return local.to_local() * 2, y.full_tensor()


@PROGRAMS.made()
def from_local() -> Any:
    row = mesh()

    def f(x: Any, w: Any) -> Any:
        y: Any = DTensor.from_local(x, row, ROWS) @ DTensor.from_local(w, row, WHOLE)
        return y.to_local()

    return f, (torch.randn(3, 4).requires_grad_(), torch.randn(4, 5).requires_grad_())


@PROGRAMS(given(ROWS, 4, 6))
def placements_are_read(x: Any) -> Any:
    return x * 2 if x.placements[0].is_shard() else x * 3


@PROGRAMS(given(ROWS, 4, 6))
def written(x: Any) -> Any:
    x.mul_(2)
    return x + 1


@PROGRAMS(given(ROWS, 4, 6, grad=True), given(WHOLE, 6, 6, grad=True))
def written_with_gradients(x: Any, w: Any) -> Any:
    y: Any = x @ w
    y.add_(x).mul_(2)
    return y.sin()


@PROGRAMS(given(ROWS, 4, 6, grad=True))
def written_through_a_view(x: Any) -> Any:
    y: Any = x * 2
    y.t().mul_(3)
    y[:, 1].zero_()
    return y * x, y.sum()


@PROGRAMS(given(COLUMNS, 4, 6, grad=True), given(COLUMNS, 4, 6))
def an_argument_is_written_and_exchanged(x: Any, y: Any) -> Any:
    y.add_(1)
    z: Any = x * y
    w = z.redistribute(placements=WHOLE) + 1
    return w.mul_(2)


# --------------------------------------------------------------------------- modules


class Mlp(nn.Module):
    """Two layers: the first sharded by its results, the second by its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    """Attention of four heads, which the processes share."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.out = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A norm, and layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), Mlp()

    def forward(self, x: torch.Tensor) -> Any:
        return self.mlp(self.norm(x))


PAIR = {"up": ColwiseParallel(), "down": RowwiseParallel()}


@PROGRAMS.made()
def tensor_parallel_mlp() -> Any:
    return parallelize_module(Mlp(), mesh(), PAIR), (torch.randn(4, 8, requires_grad=True),)


@PROGRAMS.made()
def tensor_parallel_attention() -> Any:
    plan: Any = {name: ColwiseParallel() for name in "qkv"} | {"out": RowwiseParallel()}
    return parallelize_module(Attention(), mesh(), plan), (torch.randn(2, 4, 16),)


@PROGRAMS.made()
def sequence_parallel_block() -> Any:
    plan: Any = {
        "norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    module = parallelize_module(Block(), mesh(), plan)
    return module, (distribute_tensor(torch.randn(2, 4, 8), mesh(), COLUMNS),)


class Words(nn.Module):
    """An embedding, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.out = nn.Linear(8, 11, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.out(self.embed(tokens).sin())


@PROGRAMS.made()
def vocabulary_parallel_embedding() -> Any:
    """An embedding whose words are sharded: others' rows are
    masked, in a buffer of the placement.
    """
    plan: Any = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())}
    return parallelize_module(Words(), mesh(), plan), (torch.randint(11, (2, 5)),)


@PROGRAMS.made()
def vocabulary_parallel_embedding_with_sharded_result() -> Any:
    plan: Any = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(Words(), mesh(), plan), (torch.randint(11, (2, 4)),)


# --------------------------------------------------------------------------- how they run


@contextlib.contextmanager
def group(rank: int, processes: int, file: str) -> Iterator[None]:
    """A process group of ``processes``, which meet at ``file``."""
    store = distributed.FileStore(file, processes)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def verdicts(names: Sequence[str] = ()) -> Iterator[tuple[Verdict, list[str], list[str]]]:
    """Yield the verdict of each program on this process, with the collectives of a jitted call and
    of eager's.
    """
    for name in names or PROGRAMS:
        case = PROGRAMS[name]
        torch._dynamo.reset()
        verdict = evaluate(case)
        fn, _ = case.make()
        yield verdict, _collectives(tj.jit(fn), case), _collectives(fn, case)


def _collectives(run: Callable[..., Any], case: Case) -> list[str]:
    """The collectives that gloo runs in a call and its backward, in order."""
    with torch.autograd.profiler.profile(use_kineto=False) as found:
        observe(run, case)
    return [event.name for event in found.function_events if event.name.startswith("gloo:")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 1 if any program differs from eager on any process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("processes", nargs="?", type=int, default=1)
    count = parser.parse_args(arguments).processes
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "store")
        running: Any = multiprocessing.spawn(_process, (count, file), count, join=False)
        try:
            while not running.join():
                pass
        except (multiprocessing.ProcessExitedException, multiprocessing.ProcessRaisedException):
            return 1
    return 0


def _process(rank: int, processes: int, file: str) -> None:
    wrong = False
    with group(rank, processes, file):
        for verdict, mine, eagers in verdicts():
            said = str(verdict) if mine == eagers else f"{verdict}; starts {mine}, eager {eagers}"
            print(f"process {rank}: {said}\n", end="", flush=True)  # one write: others print, too
            wrong = wrong or bool(verdict.differences) or mine != eagers
    sys.exit(int(wrong))


if __name__ == "__main__":
    sys.exit(main())
