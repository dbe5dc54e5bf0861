"""Programs with collectives in other places than the user's, for each process of a group."""

from __future__ import annotations

from typing import Any

import tj_core as tj
import torch
from tj_distributed.testing import drawn
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional


class Mean(torch.autograd.Function):
    """A parameter as it is, whose gradient is the mean over the processes."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, group: str) -> torch.Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return functional.all_reduce(grad, "sum", ctx.group) / 2, None


class Layers(nn.Module):
    """Linear layers whose gradients are reduced, each for itself, as they are computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList([torch.randn(16, 16) for _ in range(4)])
        self.biases = nn.ParameterList([torch.randn(16) for _ in range(4)])
        self.group = distributed.group.WORLD.group_name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = x @ Mean.apply(weight, self.group) + Mean.apply(bias, self.group)
            x = x.sin() * 2
        return x.pow(2).sum()


def reduced(fuse: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Gradients of `Layers` in eager and jitted, and the order of the backward."""
    config = {"distributed": options, "conformance": {"fuse": fuse}, "check": 2, "strict": True}
    plugins = ["conformance", "torch", "autograd", "distributed"]
    torch.manual_seed(distributed.get_rank())
    x = torch.randn(4, 16)
    found: dict[str, Any] = {}
    for kind in ("eager", "jitted"):
        net = Layers()
        run = tj.jit(net, session=tj.Session(plugins, overrides=config)) if kind[0] == "j" else net
        run(x).backward()
        found[kind] = [p.grad for p in net.parameters()]
    backward = tj.last_trace(run, "backward")
    regions = [c.symbol.name.startswith("region_") for c in backward.calls]
    overlaps = tj.explain(run).overlaps["backward"]
    return found | {
        "drawn": drawn(backward),
        "regions": sum(regions),
        "started": [(o.started.operation, o.between) for o in overlaps],
        "fallbacks": [str(f.reason) for f in tj.stats(run).fallbacks],
    }


def transposed() -> dict[str, Any]:
    """Two reductions, of which one is of a transposed matrix, in eager and jitted."""
    config = {"distributed": {"bucket_mb": 1.0}, "check": 2, "strict": True}
    plugins, group = ["torch", "autograd", "distributed"], distributed.group.WORLD.group_name
    torch.manual_seed(distributed.get_rank())
    x, y = torch.randn(3, 4), torch.randn(3, 4)

    def sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = (functional.all_reduce(v, "sum", group) for v in (x * 2, y, y.sin().t()))
        return tuple(v + 1 for v in found)

    run = tj.jit(sums, session=tj.Session(plugins, overrides=config))
    return {
        "eager": sums(x, y),
        "jitted": run(x, y),
        "drawn": drawn(tj.last_trace(run)),
        "fallbacks": [str(f.reason) for f in tj.stats(run).fallbacks],
    }


def under_way() -> dict[str, Any]:
    """Gathers of all kinds of tensors, in eager and jitted, and the operators that gloo runs."""
    rank, world = distributed.get_rank(), distributed.group.WORLD
    torch.manual_seed(rank)
    xs = [
        torch.randn(3), torch.randn(2, 3).to(torch.bfloat16), torch.zeros(0, 3), torch.arange(4),
        torch.tensor([True, rank > 0]), torch.randn(2, 2, dtype=torch.cfloat).conj(),
    ]  # fmt: skip

    def single(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [wait(gather(x, 2, world.group_name)) for x in xs]

    def coalesced(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [wait(x) for x in gather_coalesced(list(xs), 2, world.group_name)]

    operators = torch.ops._c10d_functional
    gather, wait = operators.all_gather_into_tensor, operators.wait_tensor
    gather_coalesced = operators.all_gather_into_tensor_coalesced
    found: dict[str, Any] = {"eager": [], "jitted": [], "fallbacks": [], "operators": {}}
    for f, given in ((single, xs), (coalesced, xs[:1] * 3)):
        run = tj.jit(f, plugins=["torch", "distributed"])
        found["eager"] += f(*given)
        found["jitted"] += run(*given)
        found["fallbacks"] += [str(fallback.reason) for fallback in tj.stats(run).fallbacks]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            run(*given)
        started = (e for e in seen.key_averages() if e.key.startswith("_c10d_functional::all"))
        found["operators"][f.__name__] = {e.key.partition("::")[2]: e.count for e in started}
        found[f.__name__] = drawn(tj.last_trace(run))
    return found
