"""Collectives as users spell them, for each process of a group of two; each returns a tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
import torch.distributed.nn.functional as differentiable
from torch import distributed as dist
from torch.autograd.profiler import profile

Tensor = torch.Tensor


def reduced(x: Tensor) -> Tensor:
    y = x.exp()  # whose gradient is computed from what is written
    dist.all_reduce(y)
    return y * 2


def reduced_in_part(x: Tensor) -> Tensor:
    y = x.sin()
    dist.all_reduce(y[:2])
    return y * y


def gathered(x: Tensor) -> Tensor:
    parts = [torch.empty(4) for _ in range(2)]
    dist.all_gather(parts, x.sin())
    return parts[0] - parts[1] * 2


def scattered(x: Tensor) -> Tensor:
    out = x[:2].cos()
    dist.reduce_scatter_tensor(out, x.sin())
    return out * x[:2]


def exchanged(x: Tensor) -> Tensor:
    out = torch.empty(4)
    dist.all_to_all_single(out, x.sin())
    return out * 2


def sent_to_all(x: Tensor) -> Tensor:
    y = x.sin()
    dist.broadcast(y, 0)
    return y * 2


def reduced_meanwhile(x: Tensor) -> Tensor:
    y = x.sin()
    work: Any = dist.all_reduce(y, async_op=True)
    z = x.cos()
    work.wait()
    return y + z


def gathered_meanwhile(x: Tensor) -> Tensor:
    parts = [torch.empty(4) for _ in range(2)]
    work: Any = dist.all_gather(parts, x.sin(), async_op=True)
    work.wait()
    return parts[0] - parts[1] * 2


def passed_on(x: Tensor) -> Tensor:
    y, out, peer = x.sin(), torch.empty(4), 1 - dist.get_rank()
    works: Any = dist.isend(y, peer), dist.irecv(out, peer)
    z = x.cos()
    for work in works:
        work.wait()
    return out * 2 + z


def passed_on_in_one(x: Tensor) -> Tensor:
    y, out, peer = x.sin(), torch.empty(4), 1 - dist.get_rank()
    ops = [dist.P2POp(dist.isend, y, peer), dist.P2POp(dist.irecv, out, peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out * 2


def passed_in_turn(x: Tensor) -> Tensor:
    y, out = x.sin(), torch.empty(4)
    if dist.get_rank() == 0:
        dist.send(y, 1)
        dist.recv(out, 1)
    else:
        dist.recv(out, 0)
        dist.send(y, 0)
    return out * 2


def with_gradient_reduced(x: Tensor) -> Tensor:
    found: Tensor = differentiable.all_reduce(x.sin(), group=dist.group.WORLD) * 2
    return found


def with_gradient_gathered(x: Tensor) -> Tensor:
    return torch.cat(list(differentiable.all_gather(x.sin(), dist.group.WORLD))) * 2


def with_gradient_sent_to_all(x: Tensor) -> Tensor:
    found: Tensor = differentiable.broadcast(x.sin(), 0, dist.group.WORLD) * 2
    return found


def _steps(f: Callable[[Tensor], Tensor], grad: bool) -> tuple[list[Any], list[str]]:
    """Results and gradients of three calls, and what gloo ran."""
    found: list[Any] = []
    with profile(use_kineto=False) as seen:
        for step in range(3):
            x = (torch.arange(4.0) / 4 + dist.get_rank() + step).requires_grad_(grad)
            y = f(x)
            found += [y.detach(), y.requires_grad]
            if y.requires_grad:
                y.sum().backward()
                found.append(x.grad)
    return found, [e.name for e in seen.function_events if e.name.startswith("gloo:")]


def compared(name: str, grad: bool) -> dict[str, Any]:
    """The program ``name`` in eager and jitted."""
    program: Callable[[Tensor], Tensor] = globals()[name]
    torch.compiler.reset()
    eager, ran = _steps(program, grad)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        jitted = tj.jit(program, plugins=["torch", "autograd", "distributed"])
        found, also = _steps(jitted, grad)
    return {
        "eager": (eager, ran),
        "jitted": (found, also),
        "said": [str(w.message) for w in said if issubclass(w.category, tj.TjWarning)],
        "entries": tj.stats(jitted).entries,
    }
