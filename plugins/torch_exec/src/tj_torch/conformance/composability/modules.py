"""Modules: copies, state, containers, and changes after they were compiled."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as globals_of_modules
from torch.nn.utils import parametrizations, parametrize, prune, stateless

from tj_torch.conformance.composability.row import Jit, falls_back, raises, works


class Net(nn.Module):
    """Parameters, running statistics, a buffer of either kind, a plain attribute."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)
        self.last = nn.Linear(width, 3)
        self.register_buffer("offset", torch.ones(3))
        self.register_buffer("hidden", torch.full((3,), 2.0), persistent=False)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, 3)`` to ``(batch, 3)``."""
        return self.last(self.norm(self.first(x)) * self.scale) + self.offset * self.hidden


def _x(rows: int = 2) -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * rows).reshape(rows, 3)


def _net(jit: Jit, **options: Any) -> tuple[Any, Net]:
    torch.manual_seed(0)
    net = Net()
    return jit(net, **options), net


def _grads(module: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def _state(module: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def step(module: Any, x: torch.Tensor) -> list[Any]:
    """One forward and backward: the output, and the gradients, which are cleared."""
    out = module(x)
    out.sum().backward()
    found = [out.detach(), *_grads(module)]
    module.zero_grad()
    return found


# --------------------------------------------------------------------------- copies, state


@works
def deepcopy(jit: Jit) -> Any:
    """``copy.deepcopy``, ``copy.copy``."""
    g, net = _net(jit)
    g(_x())
    deep, shallow = copy.deepcopy(g), copy.copy(g)
    with torch.no_grad():
        deep.first.weight.zero_()
    return [step(m, _x()) for m in (g, deep, shallow)], [_state(m) for m in (net, deep, shallow)]


@works
def pickled(jit: Jit) -> Any:
    """``pickle``."""
    g, _ = _net(jit)
    g(_x())
    other = pickle.loads(pickle.dumps(g))
    return step(other, _x()), step(g, _x()), _state(other)


@works
def saved_and_loaded(jit: Jit) -> Any:
    """``torch.save``, ``torch.load``: whole modules and state dicts."""
    g, _ = _net(jit)
    g(_x())
    whole, state = io.BytesIO(), io.BytesIO()
    torch.save(g, whole)
    torch.save(g.state_dict(), state)
    whole.seek(0), state.seek(0)
    other = torch.load(whole, weights_only=False)
    return step(other, _x()), list(torch.load(state).items())


@works
def state_dict(jit: Jit) -> Any:
    """``state_dict`` and ``load_state_dict``, strict or not, and with ``assign=True``."""
    g, net = _net(jit)
    found: list[Any] = [step(g, _x())]
    other = Net().state_dict()
    found.append(str(g.load_state_dict(other)))
    found.append(step(g, _x()))
    found.append(str(g.load_state_dict({k: v.double() for k, v in other.items()}, assign=True)))
    found.append(step(g, _x().double()))
    found.append(str(g.load_state_dict({"first.bias": torch.ones(3)}, strict=False)))
    try:
        g.load_state_dict({"wrong": torch.ones(3)})
    except RuntimeError as error:
        found.append(str(error))
    return found, step(g, _x().double()), _state(net)


@works
def state_dict_hooks(jit: Jit) -> Any:
    """``register_state_dict_*`` and ``register_load_state_dict_*`` hooks."""
    g, net = _net(jit)
    seen: list[str] = []
    g(_x())
    net.register_state_dict_pre_hook(lambda m, prefix, keep: seen.append("pre save"))
    g.register_state_dict_post_hook(lambda m, state, prefix, meta: seen.append("post save"))
    g.register_load_state_dict_pre_hook(
        lambda m, state, *rest: state.update(offset=state["offset"] * 5)
    )
    net.register_load_state_dict_post_hook(lambda m, keys: seen.append("post load"))
    g.load_state_dict(g.state_dict())
    return seen, step(g, _x()), _state(g)


@works
def tied_weights(jit: Jit) -> Any:
    """Tied weights, tied and untied again."""
    g, net = _net(jit)
    net.last.weight = net.first.weight
    found = [step(g, _x()), len(list(g.parameters()))]
    net.last.weight = nn.Parameter(net.first.weight.detach().clone())
    return found, step(g, _x()), len(list(g.parameters()))


@works
def buffers(jit: Jit) -> Any:
    """Buffers: persistent or not, changed in place, assigned, added and deleted."""
    g, net = _net(jit)
    found = [step(g, _x())]
    net.offset.add_(1)
    found.append(step(g, _x()))
    net.hidden = torch.zeros(3)
    found.append(step(g, _x()))
    g.register_buffer("extra", torch.ones(3))
    found.append(step(g, _x()))
    del net.extra
    return found, step(g, _x()), _state(g), [n for n, _ in g.named_buffers()]


@works
def counting_buffer(jit: Jit) -> Any:
    """Buffers and attributes that ``forward`` changes or assigns."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
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
    return [g(_x() + i) for i in range(3)], _state(module), module.calls


@works
def containers(jit: Jit) -> Any:
    """``ModuleList``, ``ModuleDict``, ``ParameterList``, ``ParameterDict``, ``Sequential``."""

    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
            self.table = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(_x()[0])])
            self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})
            self.rest = nn.Sequential(nn.Linear(3, 2), nn.GELU())

        def forward(self, x: torch.Tensor, name: str = "relu") -> torch.Tensor:
            for layer, weight in zip(self.layers, self.weights, strict=True):
                x = self.table[name](layer(x) * weight)
            return self.rest[:1](x + self.named["a"])

    module = Lists()
    g = jit(module)
    found = [step(g, _x()), g(_x(), "tanh")]
    module.layers.append(nn.Linear(3, 3))
    module.weights.append(nn.Parameter(torch.ones(3)))
    found += [step(g, _x())]
    module.layers[0], module.layers[1] = module.layers[1], module.layers[0]
    del module.rest[0]
    module.table["relu"] = nn.SiLU()
    return found, step(g, _x())


@works
def lazy_modules(jit: Jit) -> Any:
    """Lazy modules, which get their parameters at the first call."""
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d())
    g = jit(module)
    return [step(g, _x()) for _ in range(2)], _state(module), [type(m).__name__ for m in module]


# --------------------------------------------------------------------------- changes


@works
def train_and_eval(jit: Jit) -> Any:
    """``train()`` and ``eval()``, on the module, the jitted module, a submodule."""
    g, net = _net(jit)
    found = [step(g, _x())]
    for switch in (g.eval, net.train, net.norm.eval, g.train):
        switch()
        found.append(step(g, _x()))
    return found, _state(net)


@works
def conversions(jit: Jit) -> Any:
    """``to``, ``double``, ``half``, ``bfloat16``, ``to_empty``, ``apply``."""
    g, net = _net(jit)
    found = [step(g, _x())]
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float32):
        assert g.to(dtype) is g
        found.append(step(g, _x().to(dtype)))
    found.append(step(g.half(), _x().half()))
    g.float().to_empty(device="cpu").apply(
        lambda m: nn.init.ones_(m.weight) if isinstance(m, nn.Linear) else None
    )
    for name, value in net.state_dict().items():
        value.fill_(1) if name != "first.weight" else None
    net.hidden.fill_(1)
    return found, step(g, _x()), _state(net)


@works
def freezing(jit: Jit) -> Any:
    """``requires_grad_(False)``, of all parameters and of some."""
    g, net = _net(jit)
    found = [step(g, _x())]
    net.first.requires_grad_(False)
    found.append(step(g, _x()))
    net.last.bias.requires_grad = False
    found.append(step(g, _x()))
    g.requires_grad_(False)
    out = g(_x())
    found.append([out, out.requires_grad])
    g.requires_grad_()
    return found, step(g, _x())


@works
def replaced_submodules(jit: Jit) -> Any:
    """Submodules added, replaced, removed, and attributes set, after compilation."""
    g, net = _net(jit)
    found = [step(g, _x())]
    net.last = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    found.append(step(g, _x()))
    g.norm = nn.Identity()
    found.append(step(g, _x()))
    g.add_module("unused", nn.Linear(2, 2))
    net.last.append(nn.Linear(3, 3))
    found.append(step(g, _x()))
    g.scale = 3.0
    found.append(step(g, _x()))
    net.set_submodule("last", nn.Linear(3, 3))
    del g.unused
    return found, step(g, _x()), list(_state(g))


@raises("PyTorch does not swap tensors that guards refer to", "weakref")
def replaced_parameters(jit: Jit) -> Any:
    """Parameters set, through ``.data``, by ``swap_tensors``, or as new objects."""
    g, net = _net(jit)
    found = [step(g, _x())]
    net.first.weight.data = torch.eye(3)
    found.append(step(g, _x()))
    net.first.bias = nn.Parameter(torch.ones(3))
    found.append(step(g, _x()))
    g.last.register_parameter("bias", None)
    found.append(step(g, _x()))
    torch.utils.swap_tensors(net.last.weight, nn.Parameter(torch.full((3, 3), 2.0)))
    return found, step(g, _x())


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
    found = [g(_x())]
    Block.helper = lambda self, x: x + 10  # type: ignore[method-assign]
    found.append(g(_x()))
    module[0].helper = lambda x: x + 100
    found.append(g(_x()))
    Block.forward = lambda self, x: self.helper(x) * 3  # type: ignore[method-assign]
    found.append(g(_x()))
    module[1].forward = lambda x: x - 1  # type: ignore[method-assign]
    return found, g(_x())


@works
def compile_method(jit: Jit) -> Any:
    """``module.compile()`` of a jitted module and of one that is jitted then."""
    g, net = _net(jit)
    g(_x())
    net.last.compile(backend="eager")
    found = [step(g, _x())]
    g.compile(backend="eager")
    return found, step(g, _x()), _state(net)


@works
def reparametrized(jit: Jit) -> Any:
    """``torch.func.functional_call`` and ``torch.nn.utils.stateless``."""
    g, net = _net(jit)
    net.eval()
    values = {n: torch.full_like(p, 0.5).requires_grad_() for n, p in net.named_parameters()}
    found = [step(g, _x()), torch.func.functional_call(g, values, (_x(),))]
    found.append(
        list(torch.autograd.grad(found[-1].sum(), list(values.values()), allow_unused=True))
    )
    with stateless._reparametrize_module(g, values):
        found.append(g(_x()))
    call = jit(lambda v, x: torch.func.functional_call(net, v, (x,)))
    return found, step(g, _x()), call(values, _x()), call(dict(net.named_parameters()), _x())


# --------------------------------------------------------------------------- hooks


@works
def forward_hooks(jit: Jit) -> Any:
    """Forward hooks and pre-hooks on root and submodules, with keyword arguments, always called."""
    g, net = _net(jit)
    seen: list[str] = []
    found = [step(g, _x())]
    handles = [
        g.register_forward_pre_hook(lambda m, a: (a[0] * 2,)),
        net.register_forward_hook(lambda m, a, out: out + 1, prepend=True),
        net.first.register_forward_hook(lambda m, a, k, out: out * 3, with_kwargs=True),
        net.last.register_forward_pre_hook(lambda m, a, k: (a, k), with_kwargs=True),
        net.last.register_forward_hook(lambda *a: seen.append("last"), always_call=True),
    ]
    for handle in handles:
        found.append(step(g, _x()))
        handle.remove()
    return found, step(g, _x()), seen, _state(net)


@falls_back(
    "Dynamo leaves hooks on the backward of modules to compiled autograd",
    "Module-level backwards hooks",
)
def backward_hooks(jit: Jit) -> Any:
    """Full backward hooks and pre-hooks, on root and submodules."""
    g, net = _net(jit)
    seen: list[Any] = []
    found = [step(g, _x())]
    for module in (net, net.last):
        module.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
        module.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].clone()))
    found += [step(g, _x()), step(g, _x())]
    return found, seen


@falls_back(
    "Dynamo leaves hooks on the backward of modules to compiled autograd",
    "Module-level backwards hooks",
)
def global_hooks(jit: Jit) -> Any:
    """Global module hooks: forward, forward pre, full backward."""
    g, _ = _net(jit)
    found, seen = [step(g, _x())], []
    for register, hook in (
        (globals_of_modules.register_module_forward_hook, lambda m, a, out: out + 1),
        (globals_of_modules.register_module_forward_pre_hook, lambda m, a: (a[0] + 1,)),
        (
            globals_of_modules.register_module_full_backward_hook,
            lambda m, gi, go: seen.append(go[0].clone()),
        ),
    ):
        handle = register(hook)
        try:
            found.append(step(g, _x()))
        finally:
            handle.remove()
    return found, step(g, _x()), seen


@works
def tensor_hooks(jit: Jit) -> Any:
    """Hooks on parameters: gradient, accumulated gradient; on inputs and outputs."""
    g, net = _net(jit)
    net.eval()
    seen: list[Any] = []
    net.first.weight.register_hook(lambda grad: grad * 2)
    net.last.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    x = _x().requires_grad_()
    x.register_hook(lambda grad: seen.append(grad.clone()))
    out = g(x)
    out.register_hook(lambda grad: grad * 3)
    out.sum().backward()
    return x.grad, _grads(net), seen, step(g, _x())


@works
def tensor_hooks_inside(jit: Jit) -> Any:
    """``register_hook`` on a value inside of the program."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * 5)
        return y.sin()

    g = jit(f)
    x = _x().requires_grad_()
    return [torch.autograd.grad(g(x).sum(), x) for _ in range(2)]


# --------------------------------------------------------------------------- parametrizations


def _parametrized(jit: Jit, module: nn.Module, calls: int = 3) -> Any:
    g = jit(module)
    found = []
    for training in (True, False):
        g.train(training)
        found += [step(g, _x()) for _ in range(calls)]
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(1.5)
    return found, step(g, _x()), _state(g)


@works
def weight_norm(jit: Jit) -> Any:
    """``parametrizations.weight_norm``, and removing it."""
    torch.manual_seed(0)
    module = parametrizations.weight_norm(nn.Linear(3, 4))
    found = _parametrized(jit, module)
    return found, step(jit(parametrize.remove_parametrizations(module, "weight")), _x())


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

    g, net = _net(jit)
    found = [step(g, _x())]
    parametrize.register_parametrization(net.first, "weight", Symmetric())
    found += [step(g, _x()), step(g, _x())]
    with parametrize.cached():
        found.append(step(g, _x()))
    return found, list(_state(g))


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
    g, net = _net(jit)
    found = [step(g, _x())]
    prune.l1_unstructured(net.first, "weight", amount=0.5)
    found += [step(g, _x()), step(g, _x())]
    prune.remove(net.first, "weight")
    return found, step(g, _x()), _state(net)


@works
def parameters_to_vector(jit: Jit) -> Any:
    """``parameters_to_vector``, ``vector_to_parameters``."""
    g, _ = _net(jit)
    g(_x())
    vector = nn.utils.parameters_to_vector(g.parameters())
    nn.utils.vector_to_parameters(vector * 2, g.parameters())
    return step(g, _x())


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
        _state(module),
        step(jit(bag), index.reshape(1, 3)),
        F.embedding(index, module.weight),
    )
