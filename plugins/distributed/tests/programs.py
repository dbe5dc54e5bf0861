"""Programs for each process of a group: three steps of training, in eager or jitted.

Each returns what `compare` looks at: in both, results of this rank as lists of tensors, the
collectives that gloo ran in the last step, and what tj says of itself.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from torch import distributed, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

PLUGINS = ["torch", "autograd", "subclass", "distributed"]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        self.seen += 1
        return x


Jit = Callable[[Any], Any]


class Run:
    """One run of a program: ``jit``, and the jitted callables that it has made."""

    def __init__(self, eager: bool) -> None:
        self.eager = eager
        self.made: list[Any] = []

    def jit(self, fn: Any) -> Any:
        if self.eager:
            return fn
        self.made.append(tj.jit(fn, plugins=PLUGINS))
        return self.made[-1]


BUCKET = 2e-4
"""Megabytes in a bucket: even a small model has several."""


def ddp(model: Any, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=BUCKET, **options)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def data(step: int) -> torch.Tensor:
    """``(3, 4)``, float32, of this rank."""
    generator = torch.Generator().manual_seed(10 * step + distributed.get_rank())
    return torch.randn(3, 4, generator=generator)


def whole(parameter: Any) -> torch.Tensor:
    value = parameter.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value.clone()


def train(module: Any, steps: int = 3) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        loss = module(data(step)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def trained(module: Any, net: Net) -> Any:
    losses = train(module)
    return losses, [whole(p) for p in net.parameters()], net.seen.clone()


def ddp_of_jit(run: Run) -> Any:
    model = net()
    return trained(ddp(run.jit(model)), model)


def jit_of_ddp(run: Run) -> Any:
    model = net()
    wrapped = run.jit(ddp(model))
    assert wrapped.module is model
    return trained(wrapped, model)


def jit_of_static_ddp(run: Run) -> Any:
    model = net()
    options = {"static_graph": True, "gradient_as_bucket_view": True}
    return trained(run.jit(ddp(model, **options)), model)


def comm_hook(run: Run) -> Any:
    model = net()
    wrapped = ddp(model)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return trained(run.jit(wrapped), model)


def accumulation(run: Run) -> Any:
    model = net()
    wrapped = run.jit(ddp(model))
    found = []
    for step in range(4):
        with wrapped.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            wrapped(data(step)).pow(2).mean().backward()
        found += [p.grad.clone() for p in model.parameters()]
    return found


def inner_changes(run: Run) -> Any:
    """The user puts another module into the wrapper, and changes one inside, between calls."""
    model = net()
    wrapped = run.jit(ddp(model))
    found = [wrapped(data(0)).detach()]
    model.blocks[0].up = nn.Linear(6, 12)
    with torch.no_grad():
        for p in model.blocks[0].up.parameters():
            p.fill_(0.5)
    found.append(wrapped(data(0)).detach())
    model.eval()
    return [*found, wrapped(data(1)).detach(), model.seen]


def unused_parameters(run: Run) -> Any:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            return self.b(self.a(x)) if both else self.a(x)

    torch.manual_seed(0)
    model = Either()
    wrapped = run.jit(ddp(model, find_unused_parameters=True))
    found = []
    for step in range(4):
        wrapped(data(step), (step + distributed.get_rank()) % 2 == 0).pow(2).mean().backward()
        found += [p.grad.clone() for p in model.parameters()]
    return found


def replicated(run: Run) -> Any:
    model = net()
    return trained(run.jit(replicate(model, bucket_cap_mb=BUCKET)), model)


def fsdp1(run: Run) -> Any:
    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"), use_orig_params=True)
    return train(run.jit(model)), [whole(p) for p in model.parameters()]


def _sharded(model: Any, **options: Any) -> Any:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _blocks_first(run: Run, **options: Any) -> Any:
    """torchtitan's order: blocks are jitted, then all is sharded."""
    model = net()
    for i, block in enumerate(model.blocks):
        model.blocks[i] = run.jit(block)
    return _sharded(model, **options)


def blocks_then_sharded(run: Run) -> Any:
    model = _blocks_first(run)
    return trained(model, model)


def sharded_then_blocks(run: Run) -> Any:
    model = _sharded(net())
    for i, block in enumerate(model.blocks):
        model.blocks[i] = run.jit(block)
    return trained(model, model)


def sharded_gradients_only(run: Run) -> Any:
    model = _blocks_first(run, reshard_after_forward=False)
    return trained(model, model)


def sharded_in_low_precision(run: Run) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _blocks_first(run, mp_policy=policy)
    return trained(model, model)


def sharded_accumulation(run: Run) -> Any:
    model = _blocks_first(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model.set_requires_gradient_sync(step % 2 == 1)
        model(data(step)).pow(2).mean().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return [whole(p) for p in model.parameters()]


def joined(run: Run) -> Any:
    """Ranks have different numbers of batches; those that are done take part in the reductions."""
    model = net()
    wrapped = run.jit(ddp(model))
    losses = []
    with wrapped.join():
        for step in range(2 + distributed.get_rank()):
            loss = wrapped(data(step)).pow(2).mean()
            loss.backward()
            losses.append(loss.detach())
    return losses, [p.grad.clone() for p in model.parameters()]


def other_lengths(run: Run) -> Any:
    """Batches of each rank and step have a length of their own."""
    model = net()
    wrapped = ddp(run.jit(model))
    for step in range(4):
        rows = 2 + (step + distributed.get_rank()) % 3
        wrapped(data(step).repeat(2, 1)[:rows]).pow(2).mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def sharded_checkpoints(run: Run) -> Any:
    """torchtitan's order: the checkpointed block is jitted, and then sharded."""
    model = net()
    for i, block in enumerate(model.blocks):
        model.blocks[i] = run.jit(checkpoint_wrapper(block))
    model = _sharded(model)
    return trained(model, model)


def sharded_columns(run: Run) -> Any:
    """Four ranks: two have the columns of each layer, and each shards its half with another."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "columns"))
    model = net()
    for i, block in enumerate(model.blocks):
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["columns"], plan)
        model.blocks[i] = fully_shard(run.jit(block), mesh=mesh["data"])
    return trained(fully_shard(model, mesh=mesh["data"]), model)


def sharded_and_clipped(run: Run) -> Any:
    model = _blocks_first(run)
    model(data(0)).pow(2).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return whole(norm), [whole(p.grad) for p in model.parameters()]


PROGRAMS = (
    ddp_of_jit, jit_of_ddp, jit_of_static_ddp, comm_hook, accumulation, inner_changes,
    unused_parameters, replicated, fsdp1, blocks_then_sharded, sharded_then_blocks,
    sharded_gradients_only, sharded_in_low_precision, sharded_accumulation, sharded_and_clipped,
    joined, other_lengths, sharded_checkpoints, sharded_columns,
)  # fmt: skip


def run(name: str) -> dict[str, Any]:
    """Results of the program ``name`` in eager and jitted, and what the jitted one said."""
    program: Callable[[Run], Any] = next(p for p in PROGRAMS if p.__name__ == name)
    found: dict[str, Any] = {}
    for eager in (True, False):
        one = Run(eager)
        torch.manual_seed(1)
        with warnings.catch_warnings(record=True) as said, _collectives() as ran:
            warnings.simplefilter("always")
            result = program(one)
        kind = "eager" if eager else "jitted"
        found[kind], found[f"collectives of {kind}"] = result, ran
        found["said"] = [str(w.message) for w in said if issubclass(w.category, tj.TjWarning)]
    found["entries"] = [tj.stats(fn).entries for fn in one.made]
    found["fallbacks"] = [str(f.reason) for fn in one.made for f in tj.stats(fn).fallbacks]
    return found


@contextlib.contextmanager
def _collectives() -> Any:
    """The names of what gloo runs, in order."""
    names: list[str] = []
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        yield names
    names += [e.name for e in profile.function_events if e.name.startswith("gloo:")]
