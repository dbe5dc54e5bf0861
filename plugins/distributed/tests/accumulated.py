"""Sharded models that add up gradients without communication, for each process of a group."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tj_core as tj
import tj_distributed
import torch
from torch import nn
from torch.autograd.profiler import profile
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F


def _sharded() -> Any:
    spec = importlib.util.spec_from_file_location(
        "_sharded", Path(__file__).with_name("sharded.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


S = _sharded()
SYNC = (True, False, False, True, True, False, True)
"""The backwards that synchronise are true."""


def loss_of(run: Callable[[torch.Tensor], torch.Tensor], step: int) -> torch.Tensor:
    given = S.tokens(step)
    return F.cross_entropy(run(given[:, :-1]).flatten(0, 1).float(), given[:, 1:].flatten())


def gradients(model: nn.Module) -> list[Any]:
    return [None if p.grad is None else S.whole(p.grad) for p in model.parameters()]


def trained(model: Any, run: Any) -> tuple[list[Any], list[int]]:
    """Losses, gradients and parameters; the reductions that gloo ran in each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found: list[Any] = []
    reductions = []
    for step, sync in enumerate(SYNC):
        model.set_requires_gradient_sync(sync)
        with profile(use_kineto=False) as seen:
            loss = loss_of(run, step)
            loss.backward()
        names = [e.name for e in seen.function_events]
        reductions.append(sum(n in ("gloo:all_reduce", "gloo:reduce_scatter") for n in names))
        found += [loss.detach(), *gradients(model)]
        if sync:
            optimizer.step()
            optimizer.zero_grad()
    return [*found, *map(S.whole, model.parameters())], reductions


def compared(name: str, replicas: bool = False, single: bool = False) -> dict[str, Any]:
    """The case ``name`` under ``fully_shard``, and jitted after `shard`."""
    kind = S.Single if single else S.Words
    arguments, options = S.CASES[name]
    policy = options.get("policy", MixedPrecisionPolicy())
    over = S.mesh(replicas)
    first: Any = S.made(kind, **arguments)
    for module in (first.words, first.head) if single else ():
        fully_shard(module, mesh=over, mp_policy=policy)
    fully_shard(first, mesh=over, mp_policy=policy)
    eager, whole_reductions = trained(first, first)
    model: Any = tj_distributed.shard(S.made(kind, **arguments), over, **options)
    run = tj.jit(model, session=S.session(0.0))
    jitted, reductions = trained(model, run)
    found = {"eager": eager, "jitted": jitted, "reductions": reductions}
    found["reductions of fully_shard"] = whole_reductions
    found["fallbacks"] = [str(f.reason) for f in tj.stats(run).fallbacks]
    found["entries"] = tj.stats(run).entries
    return found


def saved() -> dict[str, int]:
    """Bytes saved by programs with and without reductions of gradients."""
    found = {}
    for reshard in (True, False):
        for sync in (True, False):
            model: Any = tj_distributed.shard(S.made(S.Words), S.mesh(), reshard=reshard)
            run = tj.jit(model, session=S.session(0.0))
            model.set_requires_gradient_sync(sync)
            loss_of(run, 0).backward()
            found[f"reshard={reshard}, sync={sync}"] = S.saved_bytes(run)
    return found


def _summed(model: Any, steps: Sequence[int]) -> list[Any]:
    """Gradients of the sum of the losses of ``steps``."""
    for step in steps:
        loss_of(model, step).backward()
    found = gradients(model)
    model.zero_grad()
    return found


class Parts(nn.Module):
    """A model of which a forward uses one part."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.part = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.parts[self.part](x)
        return found


def edges() -> dict[str, bool]:
    """Orders of forwards and backwards beside the usual one, in eager."""
    model: Any = tj_distributed.shard(S.made(S.Words), S.mesh())
    expected = _summed(model, (0, 1, 2))
    found = {}

    def close() -> bool:
        got = gradients(model)
        model.zero_grad()
        return all(
            (a is None) == (b is None) and (a is None or torch.allclose(a, b, atol=1e-6))
            for a, b in zip(got, expected, strict=True)
        )

    def keep(*steps: int) -> None:
        model.set_requires_gradient_sync(False)
        for step in steps:
            loss_of(model, step).backward()
        model.set_requires_gradient_sync(True)

    keep(0, 1)
    loss_of(model, 5)  # without a backward, as for a metric
    loss_of(model, 2).backward()
    found["a forward without a backward"] = close()
    keep(0)
    losses = [loss_of(model, step) for step in (1, 2)]
    losses[0].backward()
    losses[1].backward()
    found["two forwards first"] = close()
    model.set_requires_gradient_sync(False)
    loss = loss_of(model, 0)
    model.set_requires_gradient_sync(True)
    loss.backward()  # as with fully_shard, the backward decides
    found["decided in the backward"] = any(g is not None for g in gradients(model))
    model.zero_grad()
    keep(0, 1)
    copied = copy.deepcopy(model)
    loss_of(model, 2).backward()
    found["copied"] = close()
    copied.set_requires_gradient_sync(False)
    loss_of(copied, 0).backward()
    copied.set_requires_gradient_sync(True)
    loss_of(copied, 1).backward()
    loss_of(copied, 2).backward()
    model = copied
    found["a copy"] = close()
    parts: Any = tj_distributed.shard(S.made(Parts), S.mesh())
    parts.set_requires_gradient_sync(False)
    parts(torch.ones(2, 4)).sum().backward()
    parts.set_requires_gradient_sync(True)
    parts.part = 1
    parts(torch.ones(2, 4)).sum().backward()
    found["a part without a gradient in the last backward"] = all(
        p.grad is not None for p in parts.parameters()
    )
    return found
