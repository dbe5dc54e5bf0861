"""Jitted modules of unusual classes, and of classes that PyTorch makes itself."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from torch import nn

X = torch.linspace(-1, 1, 6).reshape(2, 3)


# --------------------------------------------------------------------------- unusual classes


class Dynamic(nn.Module):
    """Module with a ``__getattr__`` for names it does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def __getattr__(self, name: str) -> Any:
        if name == "gain":
            return 3.0
        return super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.gain


class Recording(nn.Module):
    """Module that records the attributes set by its users."""

    def __init__(self) -> None:
        object.__setattr__(self, "log", [])
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def __setattr__(self, name: str, value: Any) -> None:
        self.log.append(name)
        super().__setattr__(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Slotted(nn.Module):
    """Module with an attribute in a slot."""

    __slots__ = ("gain",)

    def __init__(self) -> None:
        super().__init__()
        self.gain = 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


class Registered(nn.Module):
    """Module whose ``__init_subclass__`` keeps a list and requires an argument."""

    kinds: ClassVar[list[str]] = []

    def __init_subclass__(cls, kind: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Registered.kinds.append(kind)


class Kind(Registered, kind="one"):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Meta(type):
    """Metaclass with a property."""

    @property
    def kind(cls) -> str:
        return "made by Meta"


class WithMeta(nn.Module, metaclass=Meta):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - 1


class CallsItself(nn.Module):
    """Module that overrides ``__call__``."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x) * 10

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Sized(nn.Module):
    """Module that is false, as its length is 0."""

    def __len__(self) -> int:
        return 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


UNUSUAL = (Dynamic, Recording, Slotted, Kind, WithMeta, CallsItself, Sized)


@pytest.mark.parametrize("cls", UNUSUAL, ids=lambda c: c.__name__)
def test_unusual_classes(cls: Any) -> None:
    module = cls()
    registered = list(Registered.kinds)
    g = tj.jit(module)
    assert isinstance(g, cls)
    for _ in range(2):
        assert_equal(g(X), module(X))
    assert registered == Registered.kinds
    assert list(g.state_dict()) == list(module.state_dict())
    if cls is not Slotted:  # which PyTorch cannot copy either
        assert_equal(copy.deepcopy(g)(X), module(X))


def test_metaclasses_are_kept() -> None:
    assert type(tj.jit(WithMeta())).kind == "made by Meta"


def test_slots_are_shared() -> None:
    module = Slotted()
    g = tj.jit(module)
    g.gain = 4.0
    assert module.gain == 4.0
    assert_equal(g(X), X * 4)
    module.gain = 5.0
    assert g.gain == 5.0
    assert_equal(g(X), X * 5)


def test_set_attributes_go_through_the_class() -> None:
    module = Recording()
    g = tj.jit(module)
    before = len(module.log)
    g.scale = 1.0
    assert module.log[before:] == ["scale"]


def test_super_calls_and_class_cells() -> None:
    class Base(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Child(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    assert_equal(tj.jit(Child())(X), X * 2 + 1)


# --------------------------------------------------------------------------- torch's own kinds


def spectral() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))


def weight_norm() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))


def orthogonal() -> nn.Module:
    return nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)).eval()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).eval()


def graph_module() -> nn.Module:
    return torch.fx.symbolic_trace(normed())


def compiled() -> nn.Module:
    return torch.compile(normed(), backend="eager")  # type: ignore[return-value]


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 3), nn.Dropout(0.0))


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.parametrize(
    "make",
    [spectral, weight_norm, orthogonal, graph_module, compiled, sequential],
    ids=lambda f: f.__name__,
)
def test_modules_of_torch(make: Any) -> None:
    torch.manual_seed(0)
    module = make()
    reference = copy.deepcopy(module)
    g = tj.jit(module)
    for _ in range(3):
        assert_equal(g(X), reference(X))
    assert list(g.state_dict()) == list(reference.state_dict())
    assert_equal(list(g.state_dict().values()), list(reference.state_dict().values()))
    g(X).sum().backward()
    reference(X).sum().backward()
    for mine, theirs in zip(module.parameters(), reference.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            assert_equal(mine.grad, theirs.grad)


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_modules() -> None:
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    g = tj.jit(module)
    for _ in range(2):
        got = g(X)
        assert_equal(got, module(X))
    assert type(module[0]) is nn.Linear
    assert module[0].weight.shape == (4, 3)


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|script). is deprecated")
@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.filterwarnings("ignore:tj. .*not captured:tj_core.TjWarning")
def test_script_modules() -> None:
    module = torch.jit.script(nn.Linear(3, 3))
    g = tj.jit(module)
    assert_equal(g(X), module(X))
    assert_equal(g(X), module(X))


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules(cls: Any) -> None:
    torch.manual_seed(0)
    module = cls(3, 4, batch_first=True)
    g = tj.jit(module)
    x = torch.randn(2, 5, 3)
    for _ in range(2):
        assert_equal(g(x), module(x))
    got = torch.autograd.grad(g(x)[0].sum(), list(module.parameters()))
    assert_equal(got, torch.autograd.grad(module(x)[0].sum(), list(module.parameters())))
