"""Generated loops whose steps multiply, add up and look up, in any order; regions interpreted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch import Tensor

PROGRAMS = 120


@dataclass
class Values:
    """The values of one step: ``x`` are all places, ``step`` is one of them, ``w`` a weight."""

    x: Tensor
    step: Tensor
    w: Tensor
    bias: Tensor
    table: Tensor
    index: Tensor
    stacked: Tensor
    t: int
    state: Tensor
    current: Tensor
    total: Tensor
    results: list[Tensor] = field(default_factory=list)


Operation = Callable[[Values], None]


def current(f: Callable[[Values], Tensor]) -> Operation:
    def run(v: Values) -> None:
        v.current = f(v)

    return run


def state(f: Callable[[Values], Tensor]) -> Operation:
    def run(v: Values) -> None:
        v.state = f(v)

    return run


def total(f: Callable[[Values], Tensor]) -> Operation:
    def run(v: Values) -> None:
        v.total = f(v)

    return run


def result(f: Callable[[Values], Tensor]) -> Operation:
    return lambda v: v.results.append(f(v))


OPERATIONS: tuple[Operation, ...] = (
    current(lambda v: v.current @ v.w),
    current(lambda v: F.linear(v.current, v.w, v.bias)),
    current(lambda v: v.current + F.embedding(v.index[:, v.t], v.table)),
    current(lambda v: v.current * v.step.sin()),
    current(lambda v: torch.addmm(v.bias, v.step, v.w)),
    current(lambda v: v.current @ v.stacked[v.t]),
    current(lambda v: torch.mm(v.step * 2, v.w) - v.state * 0.1),
    state(lambda v: torch.tanh(v.state @ v.w + v.current)),
    state(lambda v: v.state + (v.step @ v.w).sin()),
    state(lambda v: v.state * 1.0 + v.x[(v.t + 1) % len(v.x)]),
    state(lambda v: torch.addmm(v.state, v.step, v.w)),
    state(lambda v: v.state - v.x[v.t : v.t + 1].squeeze(0).cos()),
    state(lambda v: v.state + v.x[max(v.t - 1, 0) : v.t + 2].sum(0)),
    current(lambda v: v.current * v.x[-v.t - 1 :, :, v.t % 4 :].mean((0, 2))[:, None]),
    current(lambda v: v.current @ v.stacked[v.t :: 2].sum(0)),
    total(lambda v: v.total + v.state.t() @ v.current),
    total(lambda v: v.total + v.current.t() @ v.step),
    total(lambda v: v.step.t() @ v.current + v.total),
    result(lambda v: v.current @ v.w),
    result(lambda v: (v.step @ v.w).view(-1)[1:]),
    result(lambda v: (v.step @ v.w).relu()),
    result(lambda v: (v.step @ v.w).t()),
)


class Steps:
    """The program of a number: some operations in each step."""

    def __init__(self, number: int) -> None:
        draw = random.Random(number)
        self.body = draw.choices(OPERATIONS, k=draw.randrange(2, 7))
        self.turned, self.iterates = draw.random() < 0.3, draw.random() < 0.4
        self.steps, self.n, self.d = draw.choice((1, 3, 4, 5, 7)), draw.choice((1, 2, 3)), 4
        self.second, self.grad = draw.random() < 0.4, draw.random() < 0.7
        self.needy = [draw.random() < 0.85 for _ in range(6)]

    def arguments(self) -> list[Tensor]:
        """Random arguments; those of floating point require gradients or not."""
        steps, n, d = self.steps, self.n, self.d
        x = torch.randn(n, steps, d).transpose(0, 1) if self.second else torch.randn(steps, n, d)
        made = [x, torch.randn(d, d), torch.randn(d), torch.randn(6, d), torch.randn(steps, d, d)]
        found = [
            torch.empty_strided(v.shape, v.stride(), dtype=torch.float64).copy_(v) for v in made
        ]
        for value, needs in zip(found, self.needy, strict=False):
            value.requires_grad_(needs and self.grad)
        return [*found, torch.randint(0, 6, (n, steps))]

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor, table: Tensor, stacked: Tensor,
                 index: Tensor) -> list[Tensor]:  # fmt: skip
        """The last values, the results of the steps, and the sum."""
        weights, places = [w, w * 0.5, w.t()], list(range(len(x)))
        zeros = torch.zeros(w.shape, dtype=w.dtype)
        v = Values(x, x[0], w, bias, table, index, stacked, 0, x.sum(0), x[0], zeros)
        rows = list(x) if self.iterates else None
        for t in reversed(places) if self.turned else places:
            v.t, v.step = t, x[t] if rows is None else rows[t]
            for i, operation in enumerate(self.body):
                v.w = weights[i % len(weights)]
                operation(v)
        return [v.state, v.current, v.total, *v.results]


def shared(values: list[Tensor]) -> set[tuple[int, int]]:
    """The pairs of ``values`` that share memory."""
    places = [v.untyped_storage().data_ptr() for v in values]
    return {(i, k) for i in range(len(values)) for k in range(i) if places[i] == places[k]}


def traits(v: Tensor) -> tuple[Any, ...]:
    """Layout, history and memory of ``v``."""
    return v.stride(), v.requires_grad, v._base is None, v.untyped_storage().nbytes()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("number", range(PROGRAMS))
@pytest.mark.usefixtures("interpreting")
def test_steps(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    torch.manual_seed(number)
    steps = Steps(number)
    args = steps.arguments()
    session = tj.Session(("inductor", "autograd", "torch"), overrides={"check": 1, "strict": True})
    jitted = tj.jit(lambda *given: steps(*given), session=session)
    needy = [v for v in args if v.requires_grad]
    for _ in range(2):
        found, expected = jitted(*args), steps(*args)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert list(map(traits, found)) == list(map(traits, expected))
        assert shared(found) == shared(expected)
        if not any(v.requires_grad for v in expected):
            continue
        gradients, wanted = (
            torch.autograd.grad(
                sum((v * v.cos()).sum() for v in values if v.requires_grad),
                needy,
                allow_unused=True,
            )
            for values in (found, expected)
        )
        torch.testing.assert_close(gradients, wanted, rtol=1e-8, atol=1e-8)
