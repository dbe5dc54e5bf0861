"""Equal modules of a container are captured once, and programs are as if each had been.

Each program is compared with eager, call by call, while one of its modules changes in between; and
the program that is captured with the one in which each module is captured by itself.
"""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_torch.capture.dynamo import equal_modules, equal_parts, reused_regions
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.skipif(
    reused_regions.dynamos_regions() is None,
    reason="this PyTorch captures a region for each call",
)

X = torch.randn(2, 3, 4)


@pytest.fixture(autouse=True)
def _none_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal_modules, "_REFUSED", set())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, tuple[int, int]]]:
    """For each capture: the records that were made of each class, and how often they served."""
    found: list[dict[str, tuple[int, int]]] = []
    original = equal_parts.flatten

    def flatten(graph: Any, equals: Any) -> None:
        found.append({c.__name__: (equals.made[c], equals.served[c]) for c in equals.made})
        original(graph, equals)

    monkeypatch.setattr("tj_torch.capture.dynamo.adapter.flatten", flatten)
    return found


class Layer(nn.Module):
    """A layer of a transformer, with what such layers have: numbers, dicts, shared objects."""

    k = 2

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 4)
        self.scale, self.numbers, self.shared = 1.5, {"a": 2, "b": 3}, shared
        self.register_buffer("seen", torch.zeros(4))
        self.drop = nn.Dropout(0.25)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.up(self.norm(x)) * self.scale * self.k
        for name, number in self.numbers.items():
            y = y * number if name == "a" else y + number
        if mask is not None:
            y = y.masked_fill(mask, 0)
        return x + self.drop(self.down(F.gelu(y))) * self.shared["k"] + self.seen


class Model(nn.Module):
    def __init__(self, layer: Callable[[dict[str, Any]], nn.Module] = Layer, n: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = {"k": 0.5}
        self.layers = nn.ModuleList([layer(self.shared) for _ in range(n)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.shared["k"]
        for layer in self.layers:
            x = layer(x)
        return x


def ran(program: Any, model: Any, x: torch.Tensor = X) -> list[Any]:
    """Outputs, gradients, and buffers, with the random numbers of a seed."""
    torch.manual_seed(1)
    leaf = x.clone().requires_grad_()
    out = program(leaf)
    inputs = [leaf, *(p for p in model.parameters() if p.requires_grad)]
    gradients = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
    return [out, *gradients, *(b.clone() for b in model.buffers())]


def set_scale(m: Any) -> None:
    m.layers[3].scale = -2.5


def set_class(m: Any) -> None:
    m.layers[3].k = 5


def set_number(m: Any) -> None:
    m.layers[2].numbers["a"] = 7


def set_order(m: Any) -> None:
    numbers = m.layers[3].numbers
    numbers["a"] = numbers.pop("a")


def set_shared(m: Any) -> None:
    m.shared["k"] = 2.0


def set_own(m: Any) -> None:
    m.layers[4].shared = {"k": 3.0}


def set_eval(m: Any) -> None:
    m.layers[2].eval()


def set_rate(m: Any) -> None:
    m.layers[3].drop.p = 0.75


def set_hook(m: Any) -> None:
    m.layers[3].up.register_forward_hook(lambda module, args, out: out * 2)


def set_pre_hook(m: Any) -> None:
    m.layers[4].register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def set_forward(m: Any) -> None:
    m.layers[3].forward = lambda x: x * 3


def set_part(m: Any) -> None:
    m.layers[3].norm = nn.Identity()


def set_no_bias(m: Any) -> None:
    m.layers[2].down.bias = None


def set_frozen(m: Any) -> None:
    m.layers[3].up.weight.requires_grad_(False)


def set_tied(m: Any) -> None:
    m.layers[3].up.weight = m.layers[2].up.weight


def set_tied_inside(m: Any) -> None:
    m.layers[3].norm.bias = m.layers[3].down.bias


def set_type(m: Any) -> None:
    m.layers[3].double()
    m.layers[3].float()


def set_buffer(m: Any) -> None:
    m.layers[2].seen = torch.ones(4)


def set_view(m: Any) -> None:
    m.layers[3].up.weight = nn.Parameter(torch.randn(4, 6).t())


def set_shorter(m: Any) -> None:
    del m.layers[1]


CHANGES = [value for name, value in sorted(globals().items()) if name.startswith("set_")]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("before", [False, True], ids=["between calls", "before the first"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_layer_is_itself(change: Callable[[Any], None], before: bool) -> None:
    results = []
    for jit in (lambda m: m, lambda m: tj.jit(m)):
        torch._dynamo.reset()
        model = Model()
        program = jit(model)
        if before:
            change(model)
        found = [ran(program, model)]
        change(model)
        found += [ran(program, model), ran(program, model, X[:, :1])]
        results.append(found)
    torch.testing.assert_close(results[1], results[0])


def test_programs_are_as_without(monkeypatch: pytest.MonkeyPatch, counted: Any) -> None:
    """Calls, names of modules, and the lines of their sources."""
    texts = []
    for fewest in (4, 1000):
        monkeypatch.setattr(equal_parts, "FEWEST", fewest)
        jitted = tj.jit(Model(n=6), session=tj.Session(["torch", "autograd"]))
        jitted(X.clone().requires_grad_())
        trace = tj.last_trace(jitted)
        calls = [
            (c.symbol.name, c.source and (c.source.module_path, c.source.line)) for c in trace.calls
        ]
        shapes = [[getattr(p, "shape", None) for p in c.flat_outs] for c in trace.calls]
        texts.append((calls, shapes, tj.guards(jitted)))
    assert texts[0][:2] == texts[1][:2]
    paths = {path for _, (path, _) in texts[0][0]}
    assert {"layers.0.up", "layers.5.up", "layers.5"} <= paths
    assert counted == [{"Layer": (1, 5)}, {}]


class Ordered(Layer):
    """A layer whose numbers can be moved."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__(shared)
        self.numbers = OrderedDict(a=2, b=3)


class Renamed(Layer):
    """A layer that keeps a count, so that it cannot be captured once."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x)


class View(nn.Module):
    """A layer that returns a view of its argument, which no region may."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1)


class Counting(nn.Module):
    """A layer that writes to its buffer."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).relu() + x


class Saying(nn.Module):
    """A layer with a graph break."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logging.getLogger("layers").warning("called")
        return self.part(x).relu()


class OfData(nn.Module):
    """A layer that computes with a number of its data."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x).relu() * (x > 0).sum().item()


class Recomputed(Layer):
    """A layer under a checkpoint of its own."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return checkpoint(super().forward, x, mask, use_reentrant=False)  # type: ignore[no-any-return]


class Numbered(Layer):
    """A layer that knows its number."""

    made = 0

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__(shared)
        Numbered.made += 1
        self.number = Numbered.made

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x) * self.number


@pytest.mark.parametrize(
    "layer",
    [Ordered, Renamed, View, Counting, Saying, OfData, Recomputed, Numbered],
    ids=lambda c: c.__name__,
)
def test_layers_that_are_not_captured_once(layer: Any, lenient: Any) -> None:
    results = []
    for jit in (lambda m: m, lambda m: tj.jit(m)):
        torch._dynamo.reset()
        Numbered.made = 0
        model = Model(layer)
        program = jit(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: list[Any] = [ran(program, model) for _ in range(3)]
        found.append([getattr(m, "calls", 0) for m in model.layers])
        results.append(found)
    torch.testing.assert_close(results[1], results[0])


def test_calls_in_other_modes() -> None:
    class Modes(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second, third, fourth, fifth = self.layers
            x = first(x)
            with torch.no_grad():
                y = second(x)
            with torch.autocast("cpu", torch.bfloat16):
                z = third(x)
            z = z if z.dtype is torch.bfloat16 else z * 2
            mask = torch.zeros(6, dtype=torch.bool)
            x = fourth(x, mask) + fourth(x, mask=mask) + second(x)
            return fifth(x) + (1 if y.requires_grad else 2) + z

    model = Modes()
    torch.testing.assert_close(ran(tj.jit(model), model), ran(model, model))


def test_parts_of_parts(counted: Any) -> None:
    """Containers in layers: the outer ones are captured once."""

    class Outer(nn.Module):
        def __init__(self, shared: dict[str, Any]) -> None:
            super().__init__()
            self.inner = nn.Sequential(*(Layer(shared) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x)
            return out

    model = Model(Outer)
    torch.testing.assert_close(ran(tj.jit(model), model), ran(model, model))
    assert counted[0] == {"Outer": (1, 4)}
