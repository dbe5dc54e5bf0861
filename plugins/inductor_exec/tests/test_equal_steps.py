"""Steps that do the same with different places of a value are one region, compiled once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Claim, Executor, RuleTable, hookimpl
from torch import Tensor, nn

STEPS, N, D = 8, 3, 6

WAYS: dict[str, Callable[[Tensor], Iterator[Tensor]]] = {
    "iterated": iter,
    "unbound": lambda x: iter(x.unbind(0)),
    "selected": lambda x: (x[t] for t in range(STEPS)),
    "backwards": lambda x: (x[-t] for t in range(1, STEPS + 1)),
    "along the second dimension": lambda x: (x.transpose(0, 1)[:, t] for t in range(STEPS)),
    "split": lambda x: (part.squeeze(0) for part in x.split(1)),
    "in chunks": lambda x: (part.flatten(0, 1) for part in x.chunk(STEPS)),
    "of a part": lambda x: (x[1:][t - 1] if t else x[0] for t in range(STEPS)),
    "of a view of a result": lambda x: iter((x * 2).view(STEPS, D, N).transpose(1, 2)),
    "expanded": lambda x: (x[t, :1].expand(N, D) for t in range(STEPS)),
}


class Unrolled(nn.Module):
    """A recurrent cell for one step after the other; ``[STEPS, N, D]`` in, the states out."""

    def __init__(self, way: str, cell: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.way, self.cell = WAYS[way], cell(D, D)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        found = []
        for step in self.way(x):
            state = self.cell(step * 1.5, state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found)


def hold(fusing: Any, f: Any, x: Tensor, weights: list[Tensor]) -> list[str]:
    """See that results and gradients are eager's; the regions of the forward."""
    jitted = fusing(f)
    for _ in range(2):
        result, expected = jitted(x), f(x)
        torch.testing.assert_close(result, expected)
        found = torch.autograd.grad(result.square().sum(), [x, *weights])
        wanted = torch.autograd.grad(expected.square().sum(), [x, *weights])
        torch.testing.assert_close(found, wanted)
    calls = tj.last_trace(jitted).calls
    return [c.symbol.path for c in calls if c.symbol.path.startswith("region_")]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
@pytest.mark.parametrize("way", WAYS)
def test_steps_of_a_recurrent_cell(fusing: Any, way: str, cell: type[nn.RNNCellBase]) -> None:
    torch.manual_seed(0)
    model = Unrolled(way, cell).double()
    x = torch.randn(STEPS, N, D, dtype=torch.float64, requires_grad=True)
    regions = hold(fusing, model, x, list(model.parameters()))
    if cell is not nn.RNNCell:  # eight steps of which are short enough for one region
        assert len(regions) >= STEPS // 3, "steps, some of them together"
    assert len(set(regions)) <= 4, "the first and the last steps may be others"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("both", [True, False])
def test_a_place_of_what_a_step_makes(fusing: Any, made: bool, both: bool) -> None:
    """Such a view is of a value inside of the region, and no other call can make it before."""
    w = torch.randn(D, D, dtype=torch.float64, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        state, total = x[0], x[0, 0]
        for t in range(STEPS):
            inner = (state @ w).tanh() * 0.5
            row = inner[t % N] if made else state[t % N]
            other = x[t, t % N] if both else x[0, 0]
            state = inner + (row * other).sigmoid() - inner.exp() * 0.01
            total = total + state.cos().sum(0)
        return total

    x = torch.randn(STEPS, N, D, dtype=torch.float64, requires_grad=True)
    hold(fusing, f, x, [w])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("read", ["whole", "by place"])
def test_layers_whose_weights_are_stacked(fusing: Any, read: str) -> None:
    w, b = (torch.randn(STEPS, *s, dtype=torch.float64, requires_grad=True) for s in ((D, D), (D,)))

    def f(x: Tensor) -> Tensor:
        y = x[0]
        for i in range(STEPS):
            weight, bias = (w[i], b[i]) if read == "by place" else (w.sum(0), b.mean(0))
            y = torch.nn.functional.gelu(y @ weight.t() + bias).tanh() + y * 0.5
        return y

    x = torch.randn(STEPS, N, D, dtype=torch.float64, requires_grad=True)
    regions = hold(fusing, f, x, [w, b])
    assert len(set(regions)) <= 3


def test_a_step_that_is_written(fusing: Any) -> None:
    """The state of each step is written to its place of a buffer, which later steps read."""

    def f(x: Tensor) -> Tensor:
        found, state = torch.zeros_like(x), x[0]
        for t in range(STEPS):
            state = (state.sin() + x[t].cos() * 2 + found[t - 1]).tanh() * 0.9
            found[t] = state
        return found

    x = torch.randn(STEPS, N, D, dtype=torch.float64, requires_grad=True)
    hold(fusing, f, x, [])


def test_sums_of_gradients_stand_with_what_they_sum(fusing: Any) -> None:
    """The sum over steps, not each step's gradient of the weights, goes from region to region."""
    rows = 65  # so many that the gradients are not products made at once
    model, x = Unrolled("iterated", nn.GRUCell), torch.randn(STEPS, rows, D, requires_grad=True)
    jitted = fusing(model)
    jitted(x).square().sum().backward()
    calls = tj.last_trace(jitted, "backward").calls
    found = [c for c in calls if c.symbol.path.startswith("region_")]
    symbol, times = Counter(c.symbol for c in found).most_common(1)[0]
    assert times > STEPS // 2
    made = [p.shape for p in next(c for c in found if c.symbol == symbol).flat_outs]
    weights = Counter(p.shape for p in model.parameters())
    assert all(made.count(shape) == number for shape, number in weights.items())


class Selects:
    """An executor of a user's that claims views, with functions that may stand in regions."""

    tj_name = "selects"

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("aten.select.int", Claim(torch.select, traceable=True))
        return (Executor("selects", claims),)


@pytest.mark.parametrize("program", ["steps", "views that no region reads"])
def test_views_that_another_executor_claims(program: str) -> None:
    """They are asked for again by nobody: their executor runs them outside of regions, too."""

    def steps(x: Tensor) -> Tensor:
        state = x[0]
        for t in range(STEPS):
            state = (state.sin() + x[t].cos() * 2 + state.exp() * x[t]).tanh() * 0.9 - x[t].abs()
        return state

    def unread(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x + 1).sin() * 2
        return y, torch.nonzero(y[0])

    f: Any = steps if program == "steps" else unread
    jitted = tj.jit(f, plugins=[Selects(), "inductor", "torch"], strict=True)
    x = torch.randn(STEPS, N, D)
    torch.testing.assert_close(jitted(x), f(x))
