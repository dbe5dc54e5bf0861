"""The order in which leaves get their gradients, and in which their hooks run: eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd.run.arrivals import arrange, taken
from torch import nn
from torch.nn import functional as F


class Many(torch.autograd.Function):
    """One node of several arguments."""

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> torch.Tensor:
        ctx.count = len(values)
        return values[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        return (tangent,) * ctx.count


def noted(leaves: dict[str, torch.Tensor]) -> list[str]:
    """A list to which the names of ``leaves`` are added as they get their gradients."""
    found: list[str] = []

    def note(name: str) -> Callable[[torch.Tensor], None]:
        return lambda _: found.append(name)

    for name, leaf in leaves.items():
        leaf.register_post_accumulate_grad_hook(note(name))
    return found


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("count", [*range(1, 20), 31, 32, 33, 100])
def test_the_engine_takes_leaves_in_the_order_of_its_heap(count: int, others: bool) -> None:
    leaves = [torch.zeros((), requires_grad=True) for _ in range(count)]
    found = noted({str(i): leaf for i, leaf in enumerate(leaves)})
    more = [torch.zeros((), requires_grad=True) * 2] if others else []
    Many.apply(*leaves, *more).backward()  # type: ignore[no-untyped-call]
    assert found == [str(place) for place in taken(count, others)]


def test_arranged_values_are_taken_in_their_order() -> None:
    arranged = arrange([*"abcdefg"], True)
    assert "".join(arranged[place] for place in taken(7, True)) == "abcdefg"
    assert arrange([], False) == []


class Tied(nn.Module):
    """A weight with two uses, of which the first one tells when its gradient is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.mix(self.embed(x)))
        return F.linear(x, self.embed.weight, self.mix.bias.sum().expand(5))


class Scaled(torch.autograd.Function):
    """A node of the user's, with two parameters in the order in which it uses them.

    Dynamo passes arguments in that order.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w + b

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return tangent * w, tangent * x, tangent


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.rand(4)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Scaled.apply(x * self.a, self.b, self.c)  # type: ignore[no-untyped-call]
        return found.tanh() * self.a


class Two(nn.Module):
    """Two results, one of which the other depends on: two nodes of autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
        self.second = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.first(x)
        return y, self.second(y)


def convolutions() -> nn.Module:
    def block(count: int) -> list[nn.Module]:
        return [nn.Conv2d(count, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4)]

    return nn.Sequential(*block(3), *block(4))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (
        lambda: nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(9))),
        (2, 3, 4),
    ),
    "convolutions": (convolutions, (2, 3, 8, 8)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), (3, 2, 4)),
    "own": (Own, (4,)),
    "two": (Two, (2, 4)),
}


def total(results: Any) -> torch.Tensor:
    found = results if isinstance(results, tuple) else (results,)
    return sum((y.square().sum() for y in found), torch.zeros(()))


def compare(model: nn.Module, x: torch.Tensor) -> None:
    found = noted(dict(model.named_parameters()))
    total(model(x)).backward()
    eager = [*found]
    jitted = tj.jit(model)
    for _ in range(2):
        found.clear()
        total(jitted(x)).backward()
        assert found == eager
    assert len(eager) == len([*model.parameters()])


@pytest.mark.parametrize("name", MODELS)
def test_hooks_of_parameters_run_in_order(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    compare(make(), torch.rand(shape))


def test_a_weight_with_two_uses() -> None:
    compare(Tied(), torch.tensor([1, 4, 2]))
