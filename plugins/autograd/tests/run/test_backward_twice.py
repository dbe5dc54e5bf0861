"""Two backward passes: if eager saves any tensor the graph is freed, whatever tj saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

Program = Callable[[torch.Tensor], torch.Tensor]


class Constant(torch.autograd.Function):
    """Saves a tensor made in its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.ones(4))
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * ctx.saved_tensors[0]


class Nothing(torch.autograd.Function):
    """Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2.0


PROGRAMS: dict[str, Program] = {
    "a constant index": lambda x: x[[0, 1]],
    "a constant index among others": lambda x: x[[0, 1]].sum() + x.sum(),
    "a constant mask": lambda x: x[[True, False, True, False]],
    "a factor made inside": lambda x: x * torch.arange(4.0),
    "a mask made inside": lambda x: torch.where(torch.arange(4) > 1, x, 0.0),
    "an index made inside": lambda x: x.index_select(0, torch.arange(2)),
    "a gather with an index made inside": lambda x: x.gather(0, torch.arange(2)),
    "a matrix made inside": lambda x: torch.nn.functional.linear(x, torch.ones(2, 4)),
    "a nonlinear one": lambda x: x.exp(),
    "a Function that saves a constant": Constant.apply,
    "a Function that saves nothing": Nothing.apply,
    "a sum": lambda x: x.sum(),
    "a factor that is a number": lambda x: x * 3.0 + 1.0,
    "a slice": lambda x: x[1:3] * 2,
    "a view": lambda x: x.view(2, 2).t().clone(),
    "a concatenation": lambda x: torch.cat([x, x]),
    "a mean": lambda x: x.mean(),
}


def backwards(fn: Callable[[torch.Tensor], Any], **options: bool) -> tuple[str, torch.Tensor]:
    """The error of a second backward, and the gradient after it."""
    x = torch.arange(4.0).requires_grad_()
    out = fn(x)
    out.backward(torch.ones_like(out), **options)
    problem = ""
    try:
        out.backward(torch.ones_like(out))
    except RuntimeError as error:
        problem = str(error)
    assert x.grad is not None
    return problem, x.grad.detach()


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "options",
    [{}, {"retain_graph": True}, {"create_graph": True, "retain_graph": False}],
    ids=["freed", "retained", "differentiable"],
)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_backward_twice(name: str, options: dict[str, bool]) -> None:
    problem, gradient = backwards(tj.jit(PROGRAMS[name]), **options)
    expected, reference = backwards(PROGRAMS[name], **options)
    assert problem == expected
    assert torch.equal(gradient, reference)


def test_by_segments() -> None:
    """The graph of each result is freed by its own backward."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y[[0, 1]], y[1:] + 1

    def again(fn: Any, index: int) -> str:
        x = torch.arange(4.0).requires_grad_()
        out = fn(x)[index]
        out.sum().backward()
        try:
            torch.autograd.grad(out, x, torch.ones_like(out))
        except RuntimeError as error:
            return str(error)
        return ""

    jitted = tj.jit(f)
    assert [again(jitted, i) for i in (0, 1)] == [again(f, i) for i in (0, 1)]


def test_recorded_calls() -> None:
    """A call of which only PyTorch's autograd knows what it has saved."""

    def f(x: torch.Tensor) -> torch.Tensor:
        spectrum = x.expand(4, 4).to(torch.complex64)
        return torch.istft(spectrum, 6, window=torch.ones(6))

    jitted = tj.jit(f)
    problem, gradient = backwards(jitted)
    expected, reference = backwards(f)
    symbols = [c.symbol.qualname for c in tj.last_trace(jitted, stage="JOINT").calls]
    assert "tj_autograd.joint.recordings.backward" in symbols
    assert (problem, bool(problem)) == (expected, True)
    assert torch.equal(gradient, reference)
