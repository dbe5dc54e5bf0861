"""Hooks on saved tensors that raise: the caller sees the same as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from torch.utils.checkpoint import checkpoint

Program = Callable[..., Any]


def traced(f: Program) -> Program:
    return tj.jit(f, plugins=["torch", "autograd"])


def counted() -> torch.nn.Module:
    """A module that writes statistics, and has a counter."""
    norm = torch.nn.BatchNorm1d(4)
    norm.register_buffer("counter", torch.zeros(()))
    return norm


def normalised(x, norm):
    return (norm(x * 2).relu() ** 2).sum()


def counted_before(x, norm):
    norm.counter.add_(1)
    return (x.sin() * x).sum()


def counted_between(x, norm):
    y = x.exp()
    norm.counter.add_(y.detach().sum())
    return (y * x).sum()


def counted_after(x, norm):
    y = (x.sin() * x).sum()
    norm.counter.add_(1)
    return y


def random(x, norm):
    y = x * torch.rand(5, 4)
    norm.counter.add_(torch.rand(()))
    return torch.dropout(y, 0.5, True).sum() + torch.rand(())


CHECKPOINTED = [normalised, counted_before, counted_between, counted_after, random]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("f", CHECKPOINTED)
def test_a_checkpoint_stops_its_second_run(f: Program, early_stop: bool) -> None:
    def train(f: Program) -> Any:
        torch.manual_seed(0)
        norm = counted()
        x = torch.arange(20.0).view(5, 4).cos().requires_grad_()
        for _ in range(2):
            with torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
                checkpoint(f, x, norm, use_reentrant=False).backward()
        state = [t.clone() for t in norm.state_dict().values()]
        return x.grad, norm.weight.grad, state, norm.counter._version, torch.rand(())

    assert_equal(train(traced(f)), train(f))


class RefusedError(Exception):
    pass


@pytest.mark.parametrize("f", CHECKPOINTED)
def test_a_hook_that_refuses(f: Program) -> None:
    def refuse(t: torch.Tensor) -> torch.Tensor:
        raise RefusedError

    def state(f: Program) -> Any:
        torch.manual_seed(0)
        norm = counted()
        x = torch.arange(20.0).view(5, 4).cos().requires_grad_()
        with (
            pytest.raises(RefusedError),
            torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t),
        ):
            f(x, norm)
        return [t.clone() for t in norm.state_dict().values()], norm.counter._version

    assert_equal(state(traced(f)), state(f))


def test_an_error_that_does_not_come_again_is_raised_all_the_same() -> None:
    first = [RefusedError()]

    def refuse_once(t: torch.Tensor) -> torch.Tensor:
        if first:
            raise first.pop()
        return t

    jitted = traced(counted_between)
    x = torch.ones(5, 4, requires_grad=True)
    with (
        pytest.raises(RefusedError),
        torch.autograd.graph.saved_tensors_hooks(refuse_once, lambda t: t),
    ):
        jitted(x, counted())


def test_what_autograd_saw_written_is_not_written_again() -> None:
    """A result that depends on it is of a second node, whose tensors are packed after the write."""

    def f(x):
        x.mul_(3)
        return (x * x).sum()

    def refuse(t: torch.Tensor) -> torch.Tensor:
        raise RefusedError

    x = torch.ones(3, requires_grad=True) * 1
    with (
        pytest.raises(RefusedError),
        torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t),
    ):
        traced(f)(x)
    assert (x.tolist(), x._version) == ([3.0, 3.0, 3.0], 1)
