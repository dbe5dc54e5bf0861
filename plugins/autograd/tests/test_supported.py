"""Programs that JOINT does not take: they run as acquired, right, and `tj.explain` says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.utils.checkpoint import checkpoint

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x @ w
    h.mul_(2)
    return h.sum()


def writes_its_argument(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(w.sum().detach())
    return (x * w.sum()).sum()


def has_a_region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 100, lambda a: a.sin() @ w, lambda a: a.cos() @ w, (x,)).sum()


def draws_in_a_checkpoint(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def region(a: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(a @ w, 0.5).sin()

    return checkpoint(region, x, use_reentrant=False).sum()


DECLINED = {
    writes: "writes to an argument",
    writes_its_argument: "writes to an argument",
    has_a_region: "runs a region",
    draws_in_a_checkpoint: "draws random numbers in a checkpointed region",
}


def gradients(fn: Program) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    torch.manual_seed(1)
    out = fn(x, w)
    out.sum().backward()
    assert w.grad is not None
    return out, x, w.grad


@pytest.mark.parametrize("f", DECLINED, ids=lambda f: f.__name__)
def test_a_program_that_is_declined_is_differentiated_by_pytorch(f: Program) -> None:
    jitted = tj.jit(f)
    for mine, theirs in zip(gradients(jitted), gradients(f), strict=True):
        assert torch.equal(mine, theirs)
    (name, answer), *_ = tj.explain(jitted).declined
    assert name == "joint" and DECLINED[f] in answer.reason
    assert answer.source is not None and answer.source.file == __file__
    assert {"JOINT", "SPLIT"}.isdisjoint(t.stage.name for t in tj.last_traces(jitted))
    assert f"without joint: {answer.reason}" in str(tj.explain(jitted))


def test_a_program_that_needs_no_gradient_is_not_declined() -> None:
    jitted = tj.jit(writes)
    jitted(torch.ones(2, 2), torch.ones(2, 2))
    assert tj.explain(jitted).declined == ()


def test_a_checkpoint_is_computed_again() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return checkpoint(lambda a: (a @ w).sin() @ w, x, use_reentrant=False).sum()

    jitted = tj.jit(f)
    for mine, theirs in zip(gradients(jitted), gradients(f), strict=True):
        assert torch.equal(mine, theirs)
    forward, backward = (tj.last_trace(jitted, which) for which in ("forward", "backward"))
    assert {p.name for p in forward.outputs[2]} <= {p.name for p in forward.inputs}
    assert sum("sin" in c.symbol.name for c in backward.calls) >= 1
