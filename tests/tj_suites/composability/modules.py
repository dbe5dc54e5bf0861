"""Modules: copies, state, containers, and changes after they were compiled."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import nn
from torch.nn.utils import stateless

from tj_suites.composability.net import Net, data, jitted_net, state, step
from tj_suites.composability.row import Jit, works

# --------------------------------------------------------------------------- copies, state


@works
def deepcopy(jit: Jit) -> Any:
    """``copy.deepcopy``, ``copy.copy``."""
    g, net = jitted_net(jit)
    g(data())
    deep, shallow = copy.deepcopy(g), copy.copy(g)
    with torch.no_grad():
        deep.first.weight.zero_()
    return [step(m, data()) for m in (g, deep, shallow)], [state(m) for m in (net, deep, shallow)]


@works
def pickled(jit: Jit) -> Any:
    """``pickle``."""
    g, _ = jitted_net(jit)
    g(data())
    other = pickle.loads(pickle.dumps(g))
    return step(other, data()), step(g, data()), state(other)


@works
def saved_and_loaded(jit: Jit) -> Any:
    """``torch.save``, ``torch.load``: whole modules and state dicts."""
    g, _ = jitted_net(jit)
    g(data())
    whole, state = io.BytesIO(), io.BytesIO()
    torch.save(g, whole)
    torch.save(g.state_dict(), state)
    whole.seek(0), state.seek(0)
    other = torch.load(whole, weights_only=False)
    return step(other, data()), list(torch.load(state).items())


@works
def state_dict(jit: Jit) -> Any:
    """``state_dict`` and ``load_state_dict``, strict or not, and with ``assign=True``."""
    g, net = jitted_net(jit)
    found: list[Any] = [step(g, data())]
    other = Net().state_dict()
    found.append(str(g.load_state_dict(other)))
    found.append(step(g, data()))
    found.append(str(g.load_state_dict({k: v.double() for k, v in other.items()}, assign=True)))
    found.append(step(g, data().double()))
    found.append(str(g.load_state_dict({"first.bias": torch.ones(3)}, strict=False)))
    try:
        g.load_state_dict({"wrong": torch.ones(3)})
    except RuntimeError as error:
        found.append(str(error))
    return found, step(g, data().double()), state(net)


@works
def state_dict_hooks(jit: Jit) -> Any:
    """``register_state_dict_*`` and ``register_load_state_dict_*`` hooks."""
    g, net = jitted_net(jit)
    seen: list[str] = []
    g(data())
    net.register_state_dict_pre_hook(  # type: ignore[no-untyped-call]
        lambda m, prefix, keep: seen.append("pre save")
    )
    g.register_state_dict_post_hook(lambda m, state, prefix, meta: seen.append("post save"))
    g.register_load_state_dict_pre_hook(
        lambda m, state, *rest: state.update(offset=state["offset"] * 5)
    )
    net.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
        lambda m, keys: seen.append("post load")
    )
    g.load_state_dict(g.state_dict())
    return seen, step(g, data()), state(g)


@works
def tied_weights(jit: Jit) -> Any:
    """Tied weights, tied and untied again."""
    g, net = jitted_net(jit)
    net.last.weight = net.first.weight
    found = [step(g, data()), len(list(g.parameters()))]
    net.last.weight = nn.Parameter(net.first.weight.detach().clone())
    return found, step(g, data()), len(list(g.parameters()))


@works
def buffers(jit: Jit) -> Any:
    """Buffers: persistent or not, changed in place, assigned, added and deleted."""
    g, net = jitted_net(jit)
    found = [step(g, data())]
    net.offset.add_(1)
    found.append(step(g, data()))
    net.hidden = torch.zeros(3)
    found.append(step(g, data()))
    g.register_buffer("extra", torch.ones(3))
    found.append(step(g, data()))
    del net.extra
    return found, step(g, data()), state(g), [n for n, _ in g.named_buffers()]


@works
def counting_buffer(jit: Jit) -> Any:
    """Buffers and attributes that ``forward`` changes or assigns."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count: torch.Tensor
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("last", torch.zeros(3))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.last = x.mean(0)
            self.calls += 1
            return x * self.count + self.calls

    module = Counting()
    g = jit(module)
    return [g(data() + i) for i in range(3)], state(module), module.calls


@works
def containers(jit: Jit) -> Any:
    """``ModuleList``, ``ModuleDict``, ``ParameterList``, ``ParameterDict``, ``Sequential``."""

    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
            self.table = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(data()[0])])
            self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})
            self.rest = nn.Sequential(nn.Linear(3, 2), nn.GELU())

        def forward(self, x: torch.Tensor, name: str = "relu") -> Any:
            for layer, weight in zip(self.layers, self.weights, strict=True):
                x = self.table[name](layer(x) * weight)
            return self.rest[:1](x + self.named["a"])

    module = Lists()
    g = jit(module)
    found = [step(g, data()), g(data(), "tanh")]
    module.layers.append(nn.Linear(3, 3))
    module.weights.append(nn.Parameter(torch.ones(3)))
    found += [step(g, data())]
    module.layers[0], module.layers[1] = module.layers[1], module.layers[0]
    del module.rest[0]
    module.table["relu"] = nn.SiLU()
    return found, step(g, data())


@works
def lazy_modules(jit: Jit) -> Any:
    """Lazy modules, which get their parameters at the first call."""
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d())
    g = jit(module)
    return [step(g, data()) for _ in range(2)], state(module), [type(m).__name__ for m in module]


# --------------------------------------------------------------------------- changes


@works
def train_and_eval(jit: Jit) -> Any:
    """``train()`` and ``eval()``, on the module, the jitted module, a submodule."""
    g, net = jitted_net(jit)
    found = [step(g, data())]
    for switch in (g.eval, net.train, net.norm.eval, g.train):
        switch()
        found.append(step(g, data()))
    return found, state(net)


@works
def conversions(jit: Jit) -> Any:
    """``to``, ``double``, ``half``, ``bfloat16``, ``to_empty``, ``apply``."""
    g, net = jitted_net(jit)
    found = [step(g, data())]
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float32):
        assert g.to(dtype) is g
        found.append(step(g, data().to(dtype)))
    found.append(step(g.half(), data().half()))
    g.float().to_empty(device="cpu").apply(
        lambda m: nn.init.ones_(m.weight) if isinstance(m, nn.Linear) else None
    )
    for name, value in net.state_dict().items():
        value.fill_(1) if name != "first.weight" else None
    net.hidden.fill_(1)
    return found, step(g, data()), state(net)


@works
def freezing(jit: Jit) -> Any:
    """``requires_grad_(False)``, of all parameters and of some."""
    g, net = jitted_net(jit)
    found = [step(g, data())]
    net.first.requires_grad_(False)
    found.append(step(g, data()))
    net.last.bias.requires_grad = False
    found.append(step(g, data()))
    g.requires_grad_(False)
    out = g(data())
    found.append([out, out.requires_grad])
    g.requires_grad_()
    return found, step(g, data())


@works
def replaced_submodules(jit: Jit) -> Any:
    """Submodules added, replaced, removed, and attributes set, after compilation."""
    g, net = jitted_net(jit)
    found = [step(g, data())]
    net.last = nn.Sequential(nn.Linear(3, 3), nn.ReLU())  # type: ignore[assignment]
    found.append(step(g, data()))
    g.norm = nn.Identity()
    found.append(step(g, data()))
    g.add_module("unused", nn.Linear(2, 2))
    net.last.append(nn.Linear(3, 3))  # type: ignore[operator]
    found.append(step(g, data()))
    g.scale = 3.0
    found.append(step(g, data()))
    net.set_submodule("last", nn.Linear(3, 3))
    del g.unused
    return found, step(g, data()), list(state(g))


@works
def replaced_parameters(jit: Jit) -> Any:
    """Parameters set, through ``.data``, by ``swap_tensors``, or as new objects."""
    g, net = jitted_net(jit)
    found = [step(g, data())]
    net.first.weight.data = torch.eye(3)
    found.append(step(g, data()))
    net.first.bias = nn.Parameter(torch.ones(3))
    found.append(step(g, data()))
    g.last.register_parameter("bias", None)
    found.append(step(g, data()))
    torch.utils.swap_tensors(net.last.weight, nn.Parameter(torch.full((3, 3), 2.0)))
    return found, step(g, data())


@works
def replaced_methods(jit: Jit) -> Any:
    """``forward`` and other methods replaced on an instance or a class after compilation."""

    class Block(nn.Module):
        def helper(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helper(x) * 2

    module = nn.Sequential(Block(), nn.ReLU())
    g = jit(module)
    found = [g(data())]
    Block.helper = lambda self, x: x + 10  # type: ignore[method-assign]
    found.append(g(data()))
    module[0].helper = lambda x: x + 100  # type: ignore[assignment]
    found.append(g(data()))
    Block.forward = lambda self, x: self.helper(x) * 3  # type: ignore[method-assign]
    found.append(g(data()))
    module[1].forward = lambda x: x - 1
    return found, g(data())


@works
def compile_method(jit: Jit) -> Any:
    """``module.compile()`` of a jitted module and of one that is jitted then."""
    g, net = jitted_net(jit)
    g(data())
    net.last.compile(backend="eager")
    found = [step(g, data())]
    g.compile(backend="eager")
    return found, step(g, data()), state(net)


@works
def reparametrized(jit: Jit) -> Any:
    """``torch.func.functional_call`` and ``torch.nn.utils.stateless``."""
    g, net = jitted_net(jit)
    net.eval()
    values = {n: torch.full_like(p, 0.5).requires_grad_() for n, p in net.named_parameters()}
    found = [step(g, data()), torch.func.functional_call(g, values, (data(),))]
    found.append(
        list(torch.autograd.grad(found[-1].sum(), list(values.values()), allow_unused=True))
    )
    with stateless._reparametrize_module(g, values):
        found.append(g(data()))
    call = jit(lambda v, x: torch.func.functional_call(net, v, (x,)))
    return found, step(g, data()), call(values, data()), call(dict(net.named_parameters()), data())
