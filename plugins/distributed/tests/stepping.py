"""Steps of optimizers over shards, jitted and in eager, for each process of a group."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tj_core as tj
import tj_distributed
import torch
from torch import distributed, nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    "SGD lists": ("SGD", {"momentum": 0.9, "foreach": True}),
    "AdamW": ("AdamW", {"amsgrad": True}),
    "AdamW lists": ("AdamW", {"foreach": True}),
    "Adam maximize": ("Adam", {"foreach": True, "maximize": True}),
    "RMSprop": ("RMSprop", {"centered": True}),
    "Adagrad": ("Adagrad", {}),
    "NAdam": ("NAdam", {}),
    "AdamW one by one": ("AdamW", {"foreach": False}),
    "SGD one by one": ("SGD", {"momentum": 0.9, "foreach": False}),
}


def _model(how: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    if how == "many":  # parameters of one shape
        model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(12)))
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    return tj_distributed.shard(model, mesh) if how == "shard" else fully_shard(model, mesh=mesh)


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _trained(how: str, name: str, wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    model = _model(how)
    kind, arguments = CASES[name]
    optimizer = getattr(optim, kind)(model.parameters(), **arguments)
    step = wrap(optimizer.step)
    for i in range(3):
        generator = torch.Generator().manual_seed(10 * i + distributed.get_rank())
        model(torch.randn(4, 6, generator=generator)).square().sum().backward()
        step()
        optimizer.zero_grad()
    state = optimizer.state_dict()["state"]
    found = [_whole(p.detach()) for p in model.parameters()]
    found += [_whole(v) for values in state.values() for v in values.values()]
    return found, step


def compared(how: str, name: str, functional: bool = False) -> dict[str, Any]:
    """Parameters and state of the case ``name``, and what became of the step.

    ``functional``: parameters are made anew, and the program is one on local tensors.
    """
    torch.compiler.reset()
    options = {"torch": {"functional": "always"}} if functional else {}
    # Before eager: DTensor keeps what eager has found for the operators that take numbers.
    jitted, step = _trained(how, name, functools.partial(tj.jit, **options))
    eager, _ = _trained(how, name, lambda step: step)
    trace = tj.last_trace(step)
    return {
        "eager": eager,
        "jitted": jitted,
        "fallbacks": [str(f.reason) for f in tj.stats(step).fallbacks],
        "entries": tj.stats(step).entries,
        "on shards": sum(c.on_subclass for c in trace.calls),
        "written": sum(bool(c.effects.mutates) for c in trace.calls),
    }
