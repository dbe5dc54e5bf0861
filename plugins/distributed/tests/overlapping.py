"""Programs for each process of a group: how far the backward is when each bucket is reduced."""

from __future__ import annotations

from typing import Any

import tj_core as tj
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

PLUGINS = ["torch", "autograd", "subclass", "distributed"]

passed: list[str] = []
"""Layers whose backward has begun."""


@torch.library.custom_op("tj_overlap::layer", mutates_args=())
def layer(x: torch.Tensor, label: str) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("tj_overlap::layer_back", mutates_args=())
def layer_back(grad: torch.Tensor, label: str) -> torch.Tensor:
    passed.append(label)
    return grad.clone()


layer.register_fake(lambda x, label: torch.empty_like(x))
layer_back.register_fake(lambda grad, label: torch.empty_like(grad))
layer.register_autograd(
    lambda ctx, grad: (layer_back(grad, ctx.label), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "label", inputs[1]),
)


class Net(nn.Module):
    """Four layers; with ``mixed``, they run in another order than they are defined in."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.order = (1, 0, 3, 2) if mixed else tuple(range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in self.order:
            x = layer(x + self.layers[i](x).tanh(), str(i))
        return x


def run(kind: str, options: dict[str, Any], overlap: bool = True) -> Any:
    """Layers that have been passed when each bucket of the last of three steps is reduced, and
    gradients.
    """
    overrides = {"distributed": {"overlap": overlap}}
    session = tj.Session(PLUGINS, overrides=overrides)
    model: Any = Net(mixed=not options)
    inner = model
    if kind in ("inside", "before"):
        inner = tj.jit(model, session=session)
    if kind == "before":
        inner(_data(0)).sum().backward()
        model.zero_grad()
    wrapped: Any = DistributedDataParallel(inner, bucket_cap_mb=2e-4, **options)
    run = tj.jit(wrapped, session=session) if kind == "outside" else wrapped
    found: list[list[str]] = []

    def reduced(_, bucket):  # type: ignore[no-untyped-def]  # PyTorch reads annotations
        found.append(list(passed))
        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    wrapped.register_comm_hook(None, reduced)
    for step in range(3):
        passed.clear()
        found.clear()
        model.zero_grad()
        run(_data(step)).pow(2).mean().backward()
    return found, [p.grad for p in model.parameters()]


def _data(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + distributed.get_rank())
    return torch.randn(3, 8, generator=generator)
