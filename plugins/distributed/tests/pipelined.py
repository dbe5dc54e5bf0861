"""Pipelines of two processes, each with one or two stages; each returns what it found."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import tj_core as tj
import torch
from torch import distributed, nn
from torch.distributed import pipelining
from torch.nn import functional as F

PLUGINS = ["torch", "autograd", "distributed"]


class Part(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down, self.frozen = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.frozen(self.down(F.gelu(self.up(self.norm(x)))))


def trained(schedule: str, jitted: bool) -> tuple[list[torch.Tensor], list[Any], int]:
    """Losses and parameters of this rank after three steps, what is jitted, and products run.

    Products are those of the last step, when all is compiled.
    """
    kind = getattr(pipelining, schedule)
    single = schedule == "Schedule1F1B"
    rank, world, device = distributed.get_rank(), distributed.get_world_size(), torch.device("cpu")
    count = world if single else 2 * world
    torch.manual_seed(0)
    parts = [Part() for _ in range(count)]
    places = range(rank, count, world)
    mine = [tj.jit(parts[i], plugins=PLUGINS) if jitted else parts[i] for i in places]
    stages = [
        pipelining.PipelineStage(part, i, count, device)
        for part, i in zip(mine, places, strict=True)
    ]
    run = kind(stages[0] if single else stages, n_microbatches=4, loss_fn=F.mse_loss)
    parameters = [p for i in places for p in parts[i].parameters()]
    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1, momentum=0.9)
    found = []
    for step in range(3):
        torch.manual_seed(step)
        x, target = torch.randn(8, 6), torch.randn(8, 6)
        losses: list[torch.Tensor] = []
        with torch.autograd.profiler.profile(use_kineto=False) as profile:
            if rank == 0:
                run.step(x)
            else:
                run.step(target=target, losses=losses)
        found += [loss.detach() for loss in losses]
        optimizer.step()
        optimizer.zero_grad()
    ran = Counter(event.name for event in profile.function_events)
    products = ran["aten::mm"] + ran["aten::addmm"]
    return [*found, *(p.detach().clone() for p in parameters)], mine, products


def compared(schedule: str) -> dict[str, Any]:
    """One schedule in eager and jitted."""
    found: dict[str, Any] = {}
    found["eager"], _, found["products of eager"] = trained(schedule, False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found["jitted"], mine, found["products of jitted"] = trained(schedule, True)
    found["said"] = [str(w.message) for w in said if issubclass(w.category, tj.TjWarning)]
    found["entries"] = [tj.stats(part).entries for part in mine]
    return found
