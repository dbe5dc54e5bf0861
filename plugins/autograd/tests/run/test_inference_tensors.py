"""Tensors of inference mode as arguments and buffers: autograd refuses to save them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn

FROZEN, HEAD = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)
WEIGHT = nn.Parameter(torch.ones(3))

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "frozen layers": lambda x: HEAD(FROZEN(x)),
    "an activation": lambda x: HEAD(x.relu()),
    "normalised": lambda x: HEAD((x - x.mean()) / x.std()),
    "a copy": lambda x: HEAD(x.clone()),
    "a sum": lambda x: x + WEIGHT,
    "a multiple": lambda x: (x * 2) * WEIGHT,
    "a factor": lambda x: x * WEIGHT,
    "a layer": lambda x: HEAD(x),
    "a view": lambda x: x.t() * WEIGHT,
    "a condition": lambda x: torch.where(x > 0, WEIGHT, 0 * WEIGHT),
    "a mask": lambda x: torch.where(x.bool(), WEIGHT, 0 * WEIGHT),
}


def outcome(f: Callable[..., Any], x: torch.Tensor) -> Any:
    for p in (WEIGHT, *HEAD.parameters()):
        p.grad = None
    try:
        y = f(x)
        y.sum().backward()
    except RuntimeError as error:
        return str(error).partition(".")[0]
    return [y.detach(), *(p.grad for p in (WEIGHT, *HEAD.parameters()))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs(name: str) -> None:
    f = PROGRAMS[name]
    jitted = tj.jit(f, session=tj.Session(("autograd", "torch")))
    with torch.inference_mode():
        inference = torch.randn(3, 3)
    for x in (inference, torch.randn(3, 3), inference):
        wanted, found = outcome(f, x), outcome(jitted, x)
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_second_derivatives() -> None:
    f = PROGRAMS["frozen layers"]
    jitted = tj.jit(lambda x: f(x).sin(), session=tj.Session(("autograd", "torch")))
    with torch.inference_mode():
        x = torch.randn(2, 3)
    found = []
    for g in (lambda x: f(x).sin(), jitted):
        first = torch.autograd.grad(g(x).sum(), HEAD.weight, create_graph=True)[0]
        found.append(torch.autograd.grad(first.square().sum(), [*HEAD.parameters()]))
    torch.testing.assert_close(found[1], found[0])


def test_a_buffer() -> None:
    class Centred(nn.Module):
        mean: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            with torch.inference_mode():
                self.register_buffer("mean", torch.ones(3))

        def forward(self, x: torch.Tensor) -> Any:
            return HEAD(x - self.mean)

    module, x = Centred(), torch.randn(2, 3)
    jitted = tj.jit(module, session=tj.Session(("autograd", "torch")))
    torch.testing.assert_close(outcome(jitted, x), outcome(module, x), rtol=0, atol=0)
