"""Jitted modules share all state with the module that they wrap."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.compare import assert_equal
from torch import nn
from torch.nn.utils.parametrize import (
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
)

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Net(nn.Module):
    """Module with parameters, a buffer, a submodule that is used twice, and plain attributes."""

    names: tuple[str, ...] = ("class", "attribute")

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 3)
        self.register_buffer("offset", torch.ones(3))
        self.scale = 2.0

    def forward(self, x: torch.Tensor, *, shift: float = 0.0) -> torch.Tensor:
        return self.last(self.norm(self.first(x)) * self.scale + self.offset) + shift

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)

    @property
    def width(self) -> int:
        return self.first.out_features


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_state_is_shared(net: Net) -> None:
    g = tj.jit(net)
    assert list(g.state_dict()) == list(net.state_dict())
    assert [n for n, _ in g.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert all(a is b for a, b in zip(g.parameters(), net.parameters(), strict=True))
    assert all(a is b for a, b in zip(g.buffers(), net.buffers(), strict=True))
    assert dict(g.named_children()) == dict(net.named_children())
    assert g.get_submodule("first") is net.first
    assert [n for n, _ in g.named_modules()] == [n for n, _ in net.named_modules()]


def test_it_is_an_instance_and_looks_like_one(net: Net) -> None:
    g = tj.jit(net)
    assert isinstance(g, Net)
    assert isinstance(g, nn.Module)
    assert type(g).__name__ == "Net"
    assert repr(g) == repr(net)
    assert g.names == net.names
    assert g.width == 3
    assert not hasattr(g, "nothing")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'nothing'"):
        _ = g.nothing


def test_attributes_are_set_and_deleted_through_it(net: Net) -> None:
    g = tj.jit(net.eval())
    assert_equal(g(X), net(X))
    g.scale = 5.0
    assert net.scale == 5.0
    assert_equal(g(X), net(X))
    net.scale = 1.0
    assert g.scale == 1.0
    g.extra = "new"
    assert net.extra == "new"
    del g.extra
    assert not hasattr(net, "extra")
    g.last = nn.Identity()
    assert net.last is g.last
    assert_equal(g(X), net(X))
    g.offset = torch.zeros(3)
    assert "offset" in net.state_dict()
    assert_equal(g(X), net(X))


def test_train_eval_and_conversions_return_it(net: Net) -> None:
    g = tj.jit(net)
    assert g.eval() is g
    assert not net.training
    assert not net.norm.training
    assert g.train() is g
    assert net.norm.training
    assert g.double() is g
    assert net.first.weight.dtype is torch.float64
    assert_equal(g(X.double()), net(X.double()))
    assert g.to(torch.float32) is g
    assert g.requires_grad_(False) is g
    assert not any(p.requires_grad for p in net.parameters())


def test_forward_called_directly_is_the_original(net: Net) -> None:
    g = tj.jit(net.eval())
    assert_equal(g.forward(X), net(X))
    assert_equal(g.helper(X), net.helper(X))
    assert tj.stats(g).calls == 0
    assert_equal(g(X, shift=2.0), net(X, shift=2.0))
    assert tj.stats(g).calls == 1


def test_load_state_dict(net: Net) -> None:
    g = tj.jit(net.eval())
    assert_equal(g(X), net(X))
    other = Net().eval()
    g.load_state_dict(other.state_dict())
    assert_equal(g(X), other(X))
    assert tj.stats(g).misses == 1


def test_state_dict_is_saved_and_loaded(net: Net) -> None:
    buffer = io.BytesIO()
    torch.save(tj.jit(net).state_dict(), buffer)
    buffer.seek(0)
    found = torch.load(buffer)
    assert list(found) == list(net.state_dict())
    assert_equal(list(found.values()), list(net.state_dict().values()))


def test_deepcopy_and_pickle_drop_the_caches(net: Net) -> None:
    g = tj.jit(net.eval(), max_entries=3)
    g(X)
    for other in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert isinstance(other, Net)
        assert tj.stats(other).calls == 0
        assert_equal(other(X), net(X))
        assert tj.stats(other).calls == 1
        assert other.first.weight is not net.first.weight
        with torch.no_grad():
            other.first.weight.zero_()
        assert net.first.weight.abs().sum() > 0
    shallow = copy.copy(g)
    assert shallow.first is net.first
    assert_equal(shallow(X), net(X))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_what_torch_compile_made_drops_the_programs(net: Net, copied: Any) -> None:
    """The object that ``torch.compile`` makes holds the programs, with locks of the session's."""
    g: Any = torch.compile(net.eval(), backend="tj")
    expected = g(X).detach()
    other = copied(g)
    with torch.no_grad():
        other.first.weight.zero_()
    assert torch.equal(g(X), expected)
    assert_equal(other(X), other._orig_mod(X))
    assert not torch.equal(other(X), expected)


def test_whole_modules_are_saved(net: Net) -> None:
    buffer = io.BytesIO()
    torch.save(tj.jit(net.eval()), buffer)
    buffer.seek(0)
    assert_equal(torch.load(buffer, weights_only=False)(X), net(X))


# --------------------------------------------------------------------------- training


def test_gradients_accumulate_in_the_originals_parameters(net: Net) -> None:
    other = copy.deepcopy(net)
    g = tj.jit(net)
    for _ in range(3):
        g(X).square().sum().backward()
        other(X).square().sum().backward()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert_equal(mine.grad, theirs.grad)
    g.zero_grad()
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_steps_never_retrace(net: Net, optimizer: Any) -> None:
    other = copy.deepcopy(net)
    g = tj.jit(net)
    mine, theirs = optimizer(g.parameters(), lr=0.1), optimizer(other.parameters(), lr=0.1)
    for _ in range(4):
        for module, step in ((g, mine), (other, theirs)):
            step.zero_grad()
            module(X).square().sum().backward()
            step.step()
    assert_equal(list(net.state_dict().values()), list(other.state_dict().values()))
    assert tj.stats(g).misses == 1
    assert int(net.norm.num_batches_tracked) == 4


def test_running_statistics_are_updated_in_place(net: Net) -> None:
    other = copy.deepcopy(net)
    mean = net.norm.running_mean
    g = tj.jit(net)
    for _ in range(3):
        assert_equal(g(X), other(X))
    assert net.norm.running_mean is mean
    assert_equal(net.norm.running_mean, other.norm.running_mean)
    assert_equal(net.norm.running_var, other.norm.running_var)


def test_gradients_of_inputs_and_hooks_on_parameters(net: Net) -> None:
    seen = []
    net.last.weight.register_hook(lambda grad: seen.append(grad.shape) or grad * 2)
    other = copy.deepcopy(net.eval())
    g = tj.jit(net)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    g(x).sum().backward()
    other(y).sum().backward()
    assert_equal(x.grad, y.grad)
    assert len(seen) >= 1
    assert_equal(net.last.weight.grad, other.last.weight.grad * 2)


# --------------------------------------------------------------------------- hooks


def test_hooks_registered_on_the_wrapper(net: Net) -> None:
    g = tj.jit(net.eval())
    plain = g(X)
    seen = []
    handles = [
        g.register_forward_pre_hook(lambda m, args: seen.append("pre")),
        g.register_forward_hook(lambda m, args, out: out + 1),
    ]
    assert_equal(g(X), plain + 1)
    assert seen == ["pre"]
    assert_equal(g(X), plain + 1)
    assert seen == ["pre", "pre"]
    for handle in handles:
        handle.remove()
    assert_equal(g(X), plain)
    assert seen == ["pre", "pre"]


def test_hooks_with_keyword_arguments(net: Net) -> None:
    g = tj.jit(net.eval())
    expected = net(X, shift=3.0)
    net.register_forward_pre_hook(lambda m, a, k: (a, {"shift": 3.0}), with_kwargs=True)
    assert_equal(g(X), expected)


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch, of Dynamo
def test_full_backward_hooks(net: Net) -> None:
    seen: list[Any] = []
    net.eval().first.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item()))
    x = X.clone().requires_grad_()
    net(x).sum().backward()
    expected, seen[:] = list(seen), []
    tj.jit(net)(x).sum().backward()
    assert len(seen) == 1
    assert seen == pytest.approx(expected)


# --------------------------------------------------------------------------- where modules stand


def test_as_a_submodule(net: Net) -> None:
    outer = nn.Sequential(tj.jit(net.eval()), nn.ReLU())
    assert next(n for n, _ in outer.named_parameters()) == "0.first.weight"
    assert_equal(outer(X), net(X).relu())
    assert tj.stats(outer[0]).calls == 1
    whole = tj.jit(outer)
    assert_equal(whole(X), net(X).relu())
    assert tj.stats(outer[0]).calls == 1  # the inner one became part of the outer program


def test_weights_shared_by_two_modules_and_tied(net: Net) -> None:
    other = Net().eval()
    other.first = net.eval().first
    other.last.weight = other.first.weight
    f, g = tj.jit(net), tj.jit(other)
    for _ in range(2):
        assert_equal(f(X), net(X))
        assert_equal(g(X), other(X))
        with torch.no_grad():
            net.first.weight.add_(1)
    g(X).sum().backward()
    assert net.first.weight.grad is other.last.weight.grad
    assert len(list(g.parameters())) == len(list(net.parameters())) - 1


def test_containers() -> None:
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
            self.table = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
            self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})

        def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
            for layer, weight in zip(self.layers, self.weights, strict=True):
                x = self.table[name](layer(x) * weight)
            return x + self.named["a"]

    module = Lists()
    g = tj.jit(module)
    for name in ("relu", "tanh", "relu"):
        assert_equal(g(X, name), module(X, name))
    assert tj.stats(g).misses == 2


def test_a_module_that_wraps_another_in_its_forward() -> None:
    class Parallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    net = Net().eval()
    g = tj.jit(Parallel(net))
    assert_equal(g(X, shift=1.0), net(X, shift=1.0))
    outside = Parallel(tj.jit(net))
    assert_equal(outside(X, shift=1.0), net(X, shift=1.0))


def test_the_functional_call_of_a_jitted_module(net: Net) -> None:
    g = tj.jit(net.eval())
    g(X)
    values = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    assert_equal(
        torch.func.functional_call(g, values, (X,)), torch.func.functional_call(net, values, (X,))
    )
    assert_equal(g(X), net(X))


def test_training_with_dropout_and_a_loss() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    g = tj.jit(module)
    target = torch.tensor([0, 1])
    for seed in range(3):
        torch.manual_seed(seed)
        F.cross_entropy(g(X), target).backward()
        mine = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        torch.manual_seed(seed)
        F.cross_entropy(module(X), target).backward()
        assert_equal(mine, [p.grad for p in module.parameters()])
        module.zero_grad()


def test_a_dropped_module_is_freed_with_all_that_was_compiled() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    jitted = tj.jit(module)
    jitted(torch.randn(2, 3)).sum().backward()
    alive = weakref.ref(module), weakref.ref(jitted.__tj__), weakref.ref(tj.last_trace(jitted))
    del module, jitted
    gc.collect()
    assert [ref() for ref in alive] == [None, None, None]


def test_jitted_modules_of_one_class_are_of_one_class() -> None:
    """`torch.func.stack_module_state` requires equal classes."""
    first, second = tj.jit(Net()), tj.jit(Net())
    assert type(first) is type(second) is not type(tj.jit(nn.Linear(3, 3)))
    assert first.__tj__ is not second.__tj__
    first.scale = 3.0
    assert (first.scale, second.scale) == (3.0, 2.0)
    parameters, buffers = torch.func.stack_module_state([first, second])
    assert parameters["first.weight"].shape == (2, 3, 3)
    assert buffers["offset"].shape == (2, 3)
    for jitted in (first, second):
        assert_equal(jitted(X), jitted.__tj__.fn(X))


class Local(nn.Linear):
    """Class that no other test jits."""


def test_the_class_of_jitted_modules_is_freed_with_them() -> None:
    jitted = tj.jit(Local(3, 3))
    alive = weakref.ref(type(jitted))
    del jitted
    gc.collect()
    assert alive() is None
    assert Local.__subclasses__() == []


@pytest.mark.parametrize("child", [Net, lambda: nn.Linear(3, 3)], ids=["of the user", "leaf"])
def test_a_tracer_finds_jitted_children_in_the_model(child: Any) -> None:
    model = nn.Sequential(child(), nn.ReLU()).eval()
    theirs = torch.fx.symbolic_trace(model)
    model[0] = tj.jit(model[0])
    with pytest.warns(tj.TjWarning, match=r"called under torch\.fx\.symbolic_trace"):
        mine = torch.fx.symbolic_trace(model)
    targets = [[(node.op, node.target) for node in g.graph.nodes] for g in (mine, theirs)]
    assert targets[0] == targets[1]
    assert_equal(mine(X), theirs(X))


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w * 2

    def right_inverse(self, w: torch.Tensor) -> torch.Tensor:
        return w / 2


class Halved(nn.Linear):
    """Class that a layer may get, with a member that it did not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2

    def helper(self) -> str:
        return "helped"


@pytest.mark.parametrize("through", ["the module", "the jitted module"])
def test_a_parametrization(through: str) -> None:
    module = nn.Linear(3, 3)
    jitted = tj.jit(module)
    jitted(X)
    changed = module if through == "the module" else jitted
    register_parametrization(changed, "weight", Doubled())
    assert_equal(jitted(X), module(X))
    assert_equal(jitted.weight, module.weight)
    assert is_parametrized(jitted)
    assert isinstance(jitted, type(module))
    remove_parametrizations(changed, "weight")
    assert type(module) is nn.Linear
    assert_equal(jitted(X), module(X))
    assert_equal(jitted.weight, module.weight)


def test_another_class() -> None:
    module = nn.Linear(3, 3)
    jitted = tj.jit(module)
    before = jitted(X)
    jitted.__class__ = Halved
    assert type(module) is Halved
    assert jitted.helper() == "helped"
    assert_equal(jitted(X), before / 2)
    assert_equal(copy.deepcopy(jitted)(X), before / 2)
    module.__class__ = nn.Linear
    assert_equal(jitted(X), before)
    assert jitted.__class__ is nn.Linear


def test_a_parametrized_child(net: Net) -> None:
    net.first = tj.jit(net.first)
    net(X)
    expected = copy.deepcopy(net)
    for each in (net, expected):
        register_parametrization(each.first, "weight", Doubled())
    assert_equal(net(X), expected(X))
    assert [*net.state_dict()] == [*expected.state_dict()]
