"""Modules: hooks, parametrizations, and weights that are computed or written by others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as globals_of_modules
from torch.nn.utils import parametrizations, parametrize, prune

from tj_suites.composability.net import data, grads, jitted_net, state, step
from tj_suites.composability.row import Jit, falls_back, works

# --------------------------------------------------------------------------- hooks


@works
def forward_hooks(jit: Jit) -> Any:
    """Forward hooks and pre-hooks on root and submodules, with keyword arguments, always called."""
    g, net = jitted_net(jit)
    seen: list[str] = []
    found = [step(g, data())]
    handles = [
        g.register_forward_pre_hook(lambda m, a: (a[0] * 2,)),
        net.register_forward_hook(lambda m, a, out: out + 1, prepend=True),
        net.first.register_forward_hook(lambda m, a, k, out: out * 3, with_kwargs=True),
        net.last.register_forward_pre_hook(lambda m, a, k: (a, k), with_kwargs=True),
        net.last.register_forward_hook(lambda *a: seen.append("last"), always_call=True),
    ]
    for handle in handles:
        found.append(step(g, data()))
        handle.remove()
    return found, step(g, data()), seen, state(net)


@falls_back(
    "Dynamo leaves hooks on the backward of modules to compiled autograd",
    "Module-level backwards hooks",
)
def backward_hooks(jit: Jit) -> Any:
    """Full backward hooks and pre-hooks, on root and submodules."""
    g, net = jitted_net(jit)
    seen: list[Any] = []
    found = [step(g, data())]
    for module in (net, net.last):
        module.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))  # type: ignore[index]
        module.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].clone()))  # type: ignore[index]
    found += [step(g, data()), step(g, data())]
    return found, seen


@falls_back(
    "Dynamo leaves hooks on the backward of modules to compiled autograd",
    "Module-level backwards hooks",
)
def global_hooks(jit: Jit) -> Any:
    """Global module hooks: forward, forward pre, full backward."""
    g, _ = jitted_net(jit)
    found, seen = [step(g, data())], []
    hooks: tuple[tuple[Any, Callable[..., Any]], ...] = (
        (globals_of_modules.register_module_forward_hook, lambda m, a, out: out + 1),
        (globals_of_modules.register_module_forward_pre_hook, lambda m, a: (a[0] + 1,)),
        (
            globals_of_modules.register_module_full_backward_hook,
            lambda m, gi, go: seen.append(go[0].clone()),
        ),
    )
    for register, hook in hooks:
        handle = register(hook)
        try:
            found.append(step(g, data()))
        finally:
            handle.remove()
    return found, step(g, data()), seen


@works
def tensor_hooks(jit: Jit) -> Any:
    """Hooks on parameters: gradient, accumulated gradient; on inputs and outputs."""
    g, net = jitted_net(jit)
    net.eval()
    seen: list[Any] = []
    net.first.weight.register_hook(lambda grad: grad * 2)
    net.last.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    x = data().requires_grad_()
    x.register_hook(lambda grad: seen.append(grad.clone()))
    out = g(x)
    out.register_hook(lambda grad: grad * 3)
    out.sum().backward()
    return x.grad, grads(net), seen, step(g, data())


@works
def tensor_hooks_inside(jit: Jit) -> Any:
    """``register_hook`` on a value inside of the program."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * 5)
        return y.sin()

    g = jit(f)
    x = data().requires_grad_()
    return [torch.autograd.grad(g(x).sum(), x) for _ in range(2)]


# --------------------------------------------------------------------------- parametrizations


def _parametrized(jit: Jit, module: nn.Module, calls: int = 3) -> Any:
    g = jit(module)
    found = []
    for training in (True, False):
        g.train(training)
        found += [step(g, data()) for _ in range(calls)]
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(1.5)
    return found, step(g, data()), state(g)


@works
def weight_norm(jit: Jit) -> Any:
    """``parametrizations.weight_norm``, and removing it."""
    torch.manual_seed(0)
    module = parametrizations.weight_norm(nn.Linear(3, 4))
    found = _parametrized(jit, module)
    return found, step(jit(parametrize.remove_parametrizations(module, "weight")), data())


@works
def spectral_norm(jit: Jit) -> Any:
    """``parametrizations.spectral_norm``, whose buffers training changes."""
    torch.manual_seed(0)
    return _parametrized(jit, parametrizations.spectral_norm(nn.Linear(3, 4)))


@works
def orthogonal(jit: Jit) -> Any:
    """``parametrizations.orthogonal``."""
    torch.manual_seed(0)
    return _parametrized(jit, parametrizations.orthogonal(nn.Linear(3, 3)), 1)


@works
def custom_parametrization(jit: Jit) -> Any:
    """One's own parametrization, registered after compilation; ``parametrize.cached``."""

    class Symmetric(nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return w.triu() + w.triu(1).T

    g, net = jitted_net(jit)
    found = [step(g, data())]
    parametrize.register_parametrization(net.first, "weight", Symmetric())
    found += [step(g, data()), step(g, data())]
    with parametrize.cached():
        found.append(step(g, data()))
    return found, list(state(g))


@works
def old_weight_norm(jit: Jit) -> Any:
    """``torch.nn.utils.weight_norm``, the old kind, a pre-hook."""
    torch.manual_seed(0)
    return _parametrized(jit, nn.utils.weight_norm(nn.Linear(3, 4)))


@works
def old_spectral_norm(jit: Jit) -> Any:
    """``torch.nn.utils.spectral_norm``, the old kind, a pre-hook."""
    torch.manual_seed(0)
    return _parametrized(jit, nn.utils.spectral_norm(nn.Linear(3, 4)))


@works
def pruning(jit: Jit) -> Any:
    """``torch.nn.utils.prune``, applied after compilation, and made permanent."""
    g, net = jitted_net(jit)
    found = [step(g, data())]
    prune.l1_unstructured(net.first, "weight", amount=0.5)
    found += [step(g, data()), step(g, data())]
    prune.remove(net.first, "weight")
    return found, step(g, data()), state(net)


@works
def parameters_to_vector(jit: Jit) -> Any:
    """``parameters_to_vector``, ``vector_to_parameters``."""
    g, _ = jitted_net(jit)
    g(data())
    vector = nn.utils.parameters_to_vector(g.parameters())
    nn.utils.vector_to_parameters(vector * 2, g.parameters())
    return step(g, data())


@works
def max_norm_embedding(jit: Jit) -> Any:
    """``Embedding`` with ``max_norm``, which writes its own weight; ``EmbeddingBag``."""
    torch.manual_seed(0)
    module = nn.Embedding(5, 3, max_norm=0.5)
    g = jit(module)
    index = torch.tensor([0, 2, 2])
    bag = nn.EmbeddingBag(5, 3, mode="sum")
    return (
        [step(g, index) for _ in range(2)],
        state(module),
        step(jit(bag), index.reshape(1, 3)),
        F.embedding(index, module.weight),
    )
