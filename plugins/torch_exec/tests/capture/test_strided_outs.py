"""Calls that write to a tensor which is not contiguous, by ``out=``, are captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

X, Y = torch.randn(3, 4), torch.randn(4, 3)


def largest(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = y.t()
    return torch.maximum(z, x, out=z) is z, z * 2, y


def twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    first = torch.add(x, 1, out=y.t()).mul_(3)
    return first, torch.sub(y.t(), x, out=y.t()), y


def of_another_type(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = y.double()
    return torch.mul(x, 2, out=z.t()), z


@pytest.mark.parametrize("program", [largest, twice, of_another_type])
def test_a_call_writes_to_what_is_not_contiguous(program: Callable[..., Any]) -> None:
    jitted = tj.jit(program)
    for _ in range(2):
        (y, z) = Y.clone(), Y.clone()
        torch.testing.assert_close(jitted(X, y), program(X, z), rtol=0, atol=0)
        assert torch.equal(y, z)
        assert y._version == z._version
    assert not tj.stats(jitted).fallbacks


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax])
def test_steps_of_transposed_parameters_are_captured(kind: Any) -> None:
    def trained(jit: Callable[[Any], Any]) -> tuple[torch.Tensor, Any]:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.rand(3, 4).t())
        options = {} if kind is torch.optim.Adamax else {"amsgrad": True}
        step = jit(kind([weight], foreach=False, **options).step)
        for _ in range(3):
            weight.grad = torch.rand(3, 4).t() - 0.4
            step()
        return weight.detach(), step

    weight, step = trained(tj.jit)
    assert torch.equal(weight, trained(lambda step: step)[0])
    assert not tj.stats(step).fallbacks
