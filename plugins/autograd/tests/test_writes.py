"""Writes in programs that need gradients: those that may stay, and those that JOINT declines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def buckets(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As T5 and Whisper fill positions and tokens."""
    index = torch.zeros(4, dtype=torch.long)
    index[1:] = torch.arange(3)
    index += torch.where(index > 1, index, index + 1)
    return (torch.nn.functional.embedding(index % 4, w) * x).sin().sum()


def mask(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    kept = torch.ones(4, 4)
    kept[0].mul_(2)
    kept.view(-1)[3:5] = 0.5
    return ((x * w).exp() * kept).sum()


def copied(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    scale = x.detach().clone()
    before = scale * 2
    scale.add_(1)
    return (w * scale).tanh().sum() + (w * before).sum()


STAY = [buckets, mask, copied]


def after_its_use(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    kept = torch.ones(4, 4)
    y = (x + w) + kept
    kept.mul_(2)
    return (y * kept).sum()


def of_the_caller(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return (x * w).sum()


def with_a_gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * w
    y.mul_(2)
    return y.sum()


def on_memory_with_a_gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x + w
    y.detach().mul_(2)
    return y.sin().sum()


def statistics(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    mean, var = torch.zeros(4), torch.ones(4)
    return torch.nn.functional.batch_norm(x * w, mean, var, training=True).sum() * mean.sum()


DECLINED = [after_its_use, of_the_caller, with_a_gradient, on_memory_with_a_gradient, statistics]


def outcome(f: Program) -> tuple[torch.Tensor | None, ...]:
    torch.manual_seed(0)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    out = f(x, w)
    out.backward()
    return out, x, w.grad


@pytest.mark.parametrize("f", [*STAY, *DECLINED], ids=lambda f: f.__name__)
def test_programs_that_write(f: Program) -> None:
    jitted = tj.jit(f)
    for _ in range(2):
        for mine, theirs in zip(outcome(jitted), outcome(f), strict=True):
            assert mine is not None and theirs is not None and torch.equal(mine, theirs)
    reasons = [answer.reason for _, answer in tj.explain(jitted).declined]
    assert [r.partition(" ")[2] for r in reasons] == ["writes to an argument"] * (f in DECLINED)


def test_what_is_written_is_not_computed_again() -> None:
    jitted = tj.jit(copied)
    outcome(jitted)
    backward = tj.last_trace(jitted, "backward", stage="SPLIT")
    written = {"scale", "before", "clone"}
    assert not [c for c in backward.calls if written & {p.name for p in c.flat_outs}]
