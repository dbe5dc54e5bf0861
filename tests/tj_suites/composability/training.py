"""Training: optimizers, schedulers, mixed precision, what users do to gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

from tj_suites.composability.net import data, grads, jitted_net, state, step
from tj_suites.composability.row import Jit, falls_back, works

_STEPS = 3

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, maximize=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}


def _train(g: Any, optimizer: torch.optim.Optimizer, steps: int = _STEPS) -> list[torch.Tensor]:
    """The losses of some steps."""
    losses = []
    for i in range(steps):
        loss = (g(data(4) + i) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def _history(optimizer: torch.optim.Optimizer) -> list[Any]:
    """State of an optimizer for each parameter."""
    return list(optimizer.state_dict()["state"].values())


@works
def optimizers(jit: Jit) -> Any:
    """``SGD``, ``Adam``, ``AdamW``, ``RMSprop`` on a jitted module; for-loop, foreach and fused."""
    found = []
    for make in _OPTIMIZERS.values():
        g, net = jitted_net(jit)
        optimizer = make(g.parameters())
        found.append([_train(g, optimizer), state(net), _history(optimizer)])
    return found


@works
def lbfgs(jit: Jit) -> Any:
    """``LBFGS``, whose closure calls the jitted module."""
    g, net = jitted_net(jit)
    net.eval()
    optimizer = torch.optim.LBFGS(g.parameters(), lr=0.1, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (g(data(4)) ** 2).mean()
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(2)], state(net)


@works
def optimizer_state(jit: Jit) -> Any:
    """``state_dict`` and ``load_state_dict`` of optimizers; parameter groups added and changed."""
    g, net = jitted_net(jit)
    optimizer = torch.optim.Adam(g.first.parameters(), lr=0.01)
    found = [_train(g, optimizer)]
    saved = optimizer.state_dict()
    optimizer.add_param_group({"params": g.last.parameters(), "lr": 0.1})
    optimizer.param_groups[0]["lr"] = 0.5
    found.append(_train(g, optimizer))
    other = torch.optim.Adam(net.first.parameters(), lr=1.0)
    other.load_state_dict(saved)
    return found, _train(g, other), state(net)


@falls_back("Dynamo does not trace backward()", "backward")
def whole_step(jit: Jit) -> Any:
    """A jitted function that runs forward, ``backward()`` and ``optimizer.step()``."""
    found = []
    for make in _OPTIMIZERS.values():
        _, net = jitted_net(lambda m: m)
        optimizer = make(net.parameters())

        def training_step(x: torch.Tensor, net: Any = net, optimizer: Any = optimizer) -> Any:
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        g = jit(training_step)
        losses = [g(data(4) + i) for i in range(_STEPS)]
        found.append([losses, state(net), _history(optimizer)])
    return found


@works
def jitted_steps(jit: Jit) -> Any:
    """``optimizer.step`` itself jitted."""
    found = []
    for name in ("sgd", "adam", "adamw"):
        _, net = jitted_net(lambda m: m)
        optimizer = _OPTIMIZERS[name](net.parameters())
        update = jit(lambda optimizer=optimizer: optimizer.step())
        for i in range(_STEPS):
            (net(data(4) + i) ** 2).mean().backward()
            update()
            optimizer.zero_grad()
        found.append([state(net), _history(optimizer)])
    return found


@works
def functional_gradients(jit: Jit) -> Any:
    """``torch.autograd.grad`` of a jitted module, of first and second order; ``jacobian``."""
    g, net = jitted_net(jit)
    net.eval()
    x = data().requires_grad_()
    first = torch.autograd.grad(torch.sin(g(x)).sum(), x, create_graph=True)
    second = torch.autograd.grad(first[0].sum(), x)
    return first, second, torch.autograd.functional.jacobian(g, data())


@works
def schedulers(jit: Jit) -> Any:
    """Learning-rate schedulers, chained too, and one that looks at the loss."""
    found = []
    for make in (
        lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
        lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=6),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 4)], [2]
        ),
    ):
        g, net = jitted_net(jit)
        optimizer = torch.optim.SGD(g.parameters(), lr=0.1, momentum=0.9)
        scheduler = make(optimizer)
        for _ in range(4):
            _train(g, optimizer, 1)
            scheduler.step()
        found.append([scheduler.get_last_lr(), state(net)])
    g, net = jitted_net(jit)
    optimizer = torch.optim.SGD(g.parameters(), lr=0.1)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(3):
        plateau.step(_train(g, optimizer, 1)[0] + 1)
    return found, optimizer.param_groups[0]["lr"], state(net)


@falls_back("`update_bn` makes batch norm divide by a counter's value", "data-dependent")
def averaged_models(jit: Jit) -> Any:
    """``swa_utils.AveragedModel`` of a jitted module, and ``update_bn``."""
    g, _ = jitted_net(jit)
    averaged = torch.optim.swa_utils.AveragedModel(g)
    optimizer = torch.optim.SGD(g.parameters(), lr=0.1)
    for _ in range(2):
        _train(g, optimizer, 1)
        averaged.update_parameters(g)
    torch.optim.swa_utils.update_bn([data(4), data(6)], averaged)
    return averaged(data()), list(averaged.state_dict().values())


@works
def gradient_changes(jit: Jit) -> Any:
    """Gradients accumulated, clipped by norm and by value, scaled, and set to None."""
    g, net = jitted_net(jit)
    for i in range(2):
        g(data() + i).sum().backward()
    found = [grads(net), nn.utils.clip_grad_norm_(g.parameters(), 1.0), grads(net)]
    nn.utils.clip_grad_value_(g.parameters(), 0.01)
    for p in g.parameters():
        p.grad.mul_(3)
    found.append(grads(net))
    g.zero_grad(set_to_none=False)
    return found, grads(net), step(g, data())


@works
def grad_scaler(jit: Jit) -> Any:
    """``torch.amp.GradScaler`` with ``autocast``, and a step that is skipped for infinities."""
    g, net = jitted_net(jit)
    optimizer = torch.optim.SGD(g.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    found = []
    for factor in (1.0, 1.0, float("inf"), 1.0):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(g(data(4)), data(4)) * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(g.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append([loss.detach(), scaler.get_scale()])
    return found, state(net)


@works
def autocast_regions(jit: Jit) -> Any:
    """``autocast`` around a jitted function, inside it, nested, switched off, as a decorator."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        outer = x @ w
        with torch.autocast("cpu", dtype=torch.float16):
            half = x @ w
            with torch.autocast("cpu", enabled=False):
                full = x @ w
        return outer, half, full, (half + full).sum()

    g = jit(f)
    decorated = jit(torch.autocast("cpu", dtype=torch.bfloat16)(lambda x, w: x @ w))
    x, w = data(3), data(3).T.contiguous()
    found = [g(x, w), decorated(x, w)]
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            found.append(g(x, w))
    return found, g(x, w)
