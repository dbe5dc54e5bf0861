"""Regions that Dynamo captures once are those of each module, of modes, and of each argument.

Each program is compared with eager, call by call, while its modules change in between.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.dynamo import reused_regions
from torch import nn

region = torch.compiler.nested_compile_region

Step = Callable[[Any], Any]
Program = tuple[Any, list[Step]]

X, Y = torch.randn(2, 3, 3)


def run(j: Any) -> Any:
    return j(X)


def seeded(j: Any) -> Any:
    torch.manual_seed(3)
    return j(X)


def three(cls: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(cls(), cls(), cls())


def after(change: Callable[[], Any]) -> Step:
    """Change something, and run."""

    def step(j: Any) -> Any:
        change()
        return seeded(j)

    return step


class Layer(nn.Module):
    """Two products, of which the weights may be one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    @region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x)


class Table(nn.Module):
    """A number from a dict, a class's own, and a parameter."""

    k = 2

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.w = {"a": 1}, nn.Parameter(torch.randn(3, 3))

    @region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w * self.numbers["a"] * self.k * (2 if "b" in self.numbers else 1)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    @region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    @region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).relu() + x


class Numbered(nn.Module):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Numbered.made += 1
        self.i, self.v, self.t = self.made, float(self.made), torch.tensor(float(self.made))

    @region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.i + self.t * self.v


def numbers_of_a_dict() -> Program:
    m: Any = three(Table)
    return m, [
        run,
        after(lambda: m[1].numbers.update(a=4)),
        after(lambda: m[2].numbers.update(b=4)),
        after(lambda: m[2].w.requires_grad_(False)),
        after(lambda: setattr(m[2].w, "data", torch.ones(3, 3))),
    ]


def attributes_of_the_class() -> Program:
    m: Any = three(Table)
    return m, [
        run,
        after(lambda: setattr(m[1], "k", 5)),
        after(lambda: delattr(m[1], "k")),
        after(lambda: setattr(m[2], "k", 7)),
    ]


def hooks() -> Program:
    m: Any = three(Layer)
    return m, [
        run,
        after(lambda: m[2].first.register_forward_hook(lambda module, args, out: out * 2)),
        after(lambda: setattr(m[1].first, "forward", lambda x: x * 7)),
    ]


def modules() -> Program:
    m: Any = three(Layer)
    return m, [
        run,
        after(lambda: setattr(m[1], "first", nn.Identity())),
        after(lambda: setattr(m[2].second, "bias", None)),
    ]


def one_weight_twice_first() -> Program:
    m: Any = three(Layer)
    m[0].second.weight = m[0].first.weight
    return m, [run]


def one_weight_twice_last() -> Program:
    m: Any = three(Layer)
    m[2].second.weight = m[2].first.weight
    return m, [run, after(lambda: setattr(m[2].second, "weight", nn.Parameter(torch.ones(3, 3))))]


def one_weight_of_two_layers() -> Program:
    m: Any = three(Layer)
    m[1].first.weight = m[0].first.weight
    return m, [run, after(lambda: setattr(m[1].first, "weight", nn.Parameter(torch.ones(3, 3))))]


def numbers_of_each() -> Program:
    Numbered.made = 0
    m: Any = three(Numbered)
    return m, [
        run,
        after(lambda: setattr(m[2], "t", torch.tensor(9.0))),
        after(lambda: setattr(m[2], "v", -3.0)),
        after(lambda: setattr(m[1], "i", -3)),
    ]


def dropouts() -> Program:
    m: Any = three(Dropped)
    return m, [
        seeded,
        after(lambda: setattr(m[2].drop, "p", 0.0)),
        after(lambda: m[1].eval()),
    ]


def statistics() -> Program:
    m: Any = three(Normed)

    def mean(j: Any) -> Any:
        return j(X), m[2].norm.running_mean.clone()

    return m, [mean, mean, after(lambda: m[1].eval()), mean]


def one_argument_twice() -> Program:
    @region
    def part(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * 2 - b

    return lambda x: part(x, x) + part(x, Y) + part(Y, x), [run]


def without_gradients() -> Program:
    @region
    def part(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return a * w

    w = nn.Parameter(torch.ones(3, 3))

    def f(x: torch.Tensor) -> torch.Tensor:
        first = part(x, w)
        with torch.no_grad():
            second = part(x, w)
        return first + (1 if second.requires_grad else 2)

    return f, [run]


def under_autocast() -> Program:
    @region
    def part(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = a @ w
        return out * (2 if out.dtype is torch.bfloat16 else 3)

    def f(x: torch.Tensor) -> Any:
        first = part(x, Y)
        with torch.autocast("cpu", torch.bfloat16):
            return first, part(x, Y)

    return f, [run]


def more_than_dynamo_keeps() -> Program:
    @region
    def part(a: torch.Tensor, k: int) -> torch.Tensor:
        return a.sin() * k

    return lambda x: sum(part(x, k) for k in range(12)), [run]


def outcomes(make: Callable[[], Program], jit: Callable[[Any], Any]) -> list[Any]:
    torch._dynamo.reset()
    program, steps = make()
    jitted = jit(program)
    return [step(jitted) for step in steps]


@pytest.mark.parametrize(
    "make",
    [
        numbers_of_a_dict, attributes_of_the_class, hooks, modules, one_weight_twice_first,
        one_weight_twice_last, one_weight_of_two_layers, numbers_of_each, dropouts, statistics,
        one_argument_twice, without_gradients, under_autocast, more_than_dynamo_keeps,
    ],
)  # fmt: skip
def test_regions_are_those_of_each_call(make: Callable[[], Program], lenient: Any) -> None:
    expected = outcomes(make, lambda program: program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where a region cannot be captured, it runs in eager
        found = outcomes(make, tj.jit)
    torch.testing.assert_close(found, expected)


def test_a_region_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For three equal layers; with another one, that is captured as well."""
    if reused_regions.dynamos_regions() is None:
        pytest.skip("this PyTorch captures a region for each call")
    reused: list[Any] = []
    original = reused_regions.Other.guard

    def counted(self: Any, condition: Any) -> None:
        reused.append(condition)
        original(self, condition)

    monkeypatch.setattr(reused_regions.Other, "guard", counted)
    m: Any = three(Layer)
    x = X.clone().requires_grad_()  # as the outputs of layers do
    tj.jit(m, plugins=["torch"])(x)
    assert len(reused) == 2
    m[1].first.bias = None
    tj.jit(m, plugins=["torch"])(x)
    assert len(reused) == 3
