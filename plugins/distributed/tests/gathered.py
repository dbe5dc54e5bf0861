"""Programs on gathered shards, for each process of a group; each returns what it found."""

from __future__ import annotations

import functools
import math
from typing import Any

import tj_core as tj
import torch
from tj_distributed.testing import drawn
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CAPTURED = hasattr(functional, "all_gather_single_autograd")
"""PyTorch 2.13 and newer have gathers of operators alone, under another name.

Older ones have a `torch.autograd.Function` in each: 2.10 breaks the graph there, 2.11 captures it,
and what it gathers is saved.
"""

GATHER: Any = (
    functional.all_gather_single_autograd if CAPTURED else functional.all_gather_tensor_autograd
)

PLUGINS = ["torch", "autograd", "distributed"]


def gathered(shard: torch.Tensor, shape: tuple[int, ...], tag: str | None) -> torch.Tensor:
    full = GATHER(shard, 0, distributed.group.WORLD)
    if tag is not None:
        full = tj.tag(full, tag)
    found: torch.Tensor = full[: math.prod(shape)].view(shape)
    return found


def sharded(model: nn.Module, tag: str | None) -> nn.Module:
    """``model`` with a flat shard for each parameter, and a property that gathers it."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    for module in list(model.modules()):
        properties = {}
        for name, p in dict(module.named_parameters(recurse=False)).items():
            size = -(-p.numel() // world)
            flat = F.pad(p.detach().flatten(), (0, size * world - p.numel()))
            delattr(module, name)
            shard = nn.Parameter(flat[rank * size : (rank + 1) * size].clone())
            module.register_parameter(f"{name}_shard", shard)

            def full(self: Any, name: str = name, shape: Any = tuple(p.shape)) -> torch.Tensor:
                return gathered(getattr(self, f"{name}_shard"), shape, tag)

            properties[name] = property(full)
        if properties:
            module.__class__ = type(module.__class__.__name__, (module.__class__,), properties)
    return model


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.Linear(32, 4))


def data() -> torch.Tensor:
    torch.manual_seed(distributed.get_rank() + 1)
    return torch.randn(4, 8)


SHORT = {"all_gather_into_tensor": "G", "reduce_scatter_tensor": "R", "all_reduce": "A"}


def shape(trace: Any) -> str:
    """The starts of collectives in ``trace``, in order."""
    names = (c.symbol.name.split(".")[-2:][0] for c in trace.calls)
    return "".join(SHORT.get(name, "") for name in names)


def saved_bytes(forward: Any) -> int:
    """Bytes that ``forward`` saves beside its inputs."""
    inputs = {p.name for p in forward.inputs}
    saved = {p.name: p for p in forward.outputs[2] if p.name not in inputs}
    return sum(math.prod(p.shape) * 4 for p in saved.values())


SINGLE = (("bucket_mb", 0.0),)
"""Options of tj-distributed: each collective starts for itself."""


@functools.cache
def session(budget: float, options: tuple[tuple[str, Any], ...] = SINGLE) -> tj.Session:
    """One session for several programs, which expands an operation once."""
    config = {"autograd": {"memory_budget": budget}, "check": "sample", "strict": True}
    return tj.Session(PLUGINS, overrides=config | {"distributed": dict(options)})


def train(tag: str | None, budget: float = 1.0, options: Any = SINGLE) -> dict[str, Any]:
    """Loss and gradients of a sharded model in eager and jitted, what is saved, and what runs.

    The latter not before PyTorch 2.13.
    """
    found: dict[str, Any] = {}
    for kind in ("eager", "jitted"):
        net = sharded(model(), tag)
        run = net
        if kind == "jitted":
            run = tj.jit(net, session=session(budget, tuple(options)))
        loss = run(data()).pow(2).sum()
        loss.backward()
        found[kind] = [loss.detach(), *(p.grad for p in net.parameters())]
    if not CAPTURED:
        return found
    forward, backward = tj.last_trace(run), tj.last_trace(run, "backward")
    found |= {"saved": saved_bytes(forward), "explained": str(tj.explain(run))}
    found |= {"forward": shape(forward), "backward": shape(backward)}
    found["drawn"] = drawn(forward), drawn(backward)
    overlaps = tj.explain(run).overlaps
    found["between"] = {part: [one.between for one in overlaps[part]] for part in overlaps}
    found["fallbacks"] = [str(f.reason) for f in tj.stats(run).fallbacks]
    return found


def reduced() -> dict[str, Any]:
    """A sum over the processes that is tagged to run again, which it must not."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = tj.tag(functional.all_reduce(w.exp(), "sum", distributed.group.WORLD), "RECOMPUTE")
        return (x * total.view(2, 3)).sum()

    x, w = torch.ones(2, 3, requires_grad=True), torch.rand(6)
    g = tj.jit(f, plugins=PLUGINS)
    g(x, w).backward()
    return {"grad": x.grad, "explained": str(tj.explain(g)), "forward": shape(tj.last_trace(g)),
            "backward": shape(tj.last_trace(g, "backward"))}  # fmt: skip


def groups() -> dict[str, Any]:
    """Collectives of two groups."""
    other = distributed.new_group([0, 1])

    def f(x: torch.Tensor) -> torch.Tensor:
        first = functional.all_reduce(x, "sum", distributed.group.WORLD)
        return first + functional.all_reduce(x * 2, "sum", other)

    g = tj.jit(f, plugins=PLUGINS)
    x = torch.ones(3)
    equal = torch.equal(g(x), f(x))
    calls = [c for c in tj.last_trace(g, stage="ACQUIRED").calls if c.effects.ordered]
    names = [distributed.group.WORLD.group_name, other.group_name]
    return {"equal": equal, "ordered": [c.effects.ordered for c in calls], "names": names}


def checkpointed(reduce: bool) -> dict[str, Any]:
    """A gather in a checkpointed region, or a sum over the processes."""
    shard = torch.rand(3, generator=torch.Generator().manual_seed(distributed.get_rank()))

    def region(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        world = distributed.group.WORLD
        if reduce:
            full = functional.all_reduce(torch.cat([part.detach(), part]).detach(), "sum", world)
            return (x * part.sum() * full.view(2, 3)).sin()
        full = GATHER(part, 0, world)
        return (x * full.view(2, 3)).sin()

    def f(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(region, x, part, use_reentrant=False)
        return found.sum()

    jitted = tj.jit(f, session=session(1.0))
    found: dict[str, Any] = {}
    for kind, run in (("eager", f), ("jitted", jitted)):
        x, part = torch.ones(2, 3, requires_grad=True), shard.clone().requires_grad_()
        run(x, part).backward()
        found[kind] = [x.grad, part.grad]
    if not CAPTURED:
        return found
    found["forward"], found["backward"] = (
        shape(tj.last_trace(jitted, *which)) for which in ((), ("backward",))
    )
    return found
