"""Training on several processes, here groups of one: replicated, sharded, collectives."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tj_suites.composability.net import data, jitted_net, state
from tj_suites.composability.row import Jit, works


@contextlib.contextmanager
def _group() -> Iterator[None]:
    """A process group of this process alone."""
    with tempfile.NamedTemporaryFile() as file:
        store = distributed.FileStore(file.name, 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield
        finally:
            distributed.destroy_process_group()


def _train(g: Any) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(g.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for i in range(3):
        loss = g(data() + i).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@works
def replicated_outside(jit: Jit) -> Any:
    """``DistributedDataParallel`` of a jitted module."""
    with _group():
        g, net = jitted_net(jit)
        wrapped = DistributedDataParallel(g)
        return _train(wrapped), state(net)


@works
def replicated_inside(jit: Jit) -> Any:
    """A ``DistributedDataParallel`` module, jitted."""
    with _group():
        _, net = jitted_net(lambda m: m)
        return _train(jit(DistributedDataParallel(net))), state(net)


def _sharded(wrap: Callable[[Any, Any], Any]) -> Any:
    with _group():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
        losses = _train(wrap(net, init_device_mesh("cpu", (1,))))
        weights: list[Any] = list(net.parameters())
        return losses, [p.full_tensor() for p in weights]


@works
def sharded_inside(jit: Jit) -> Any:
    """``fully_shard`` of a module that is jitted then."""
    return _sharded(lambda net, mesh: jit(fully_shard(net, mesh=mesh)))


@works
def sharded_outside(jit: Jit) -> Any:
    """``fully_shard`` of a jitted module."""
    return _sharded(lambda net, mesh: fully_shard(jit(net), mesh=mesh))


@works
def distributed_tensors(jit: Jit) -> Any:
    """``DTensor`` as argument and result, with gradients."""
    with _group():
        mesh = init_device_mesh("cpu", (1,))
        x = distribute_tensor(data(), mesh, [Shard(0)])
        w = distribute_tensor(data(3), mesh, [Shard(0)]).requires_grad_()
        g = jit(lambda x, w: (x @ w).relu() + 1)
        found = []
        for _ in range(2):
            out = g(x, w)
            assert isinstance(out, DTensor)
            grad: Any
            (grad,) = torch.autograd.grad(out.sum(), w)
            found.append([out.full_tensor(), str(out.placements), grad.full_tensor()])
        return found


@works
def collectives(jit: Jit) -> Any:
    """``all_reduce``, ``all_gather``, ``broadcast`` in a jitted function."""

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        distributed.all_reduce(y)
        gathered = [torch.empty_like(y)]
        distributed.all_gather(gathered, y)
        return y + 1, gathered

    with _group():
        g = jit(f)
        return [g(data()) for _ in range(2)]
