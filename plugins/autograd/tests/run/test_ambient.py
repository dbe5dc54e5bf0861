"""``backward()`` under autocast: casts in eager's formulas."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_autograd.run.variants import Variants
from tj_conformance.oracle.compare import assert_equal
from torch import nn


def products(x: Any, w: Any) -> Any:
    return (x @ w).sin() @ w


def partly(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        y = x @ w
    return F.layer_norm(y, (4,)) @ w.sin()


def random(x: Any, w: Any) -> Any:
    return F.dropout(x @ w, 0.5) @ w


def written(x: Any, w: Any) -> Any:
    y = x @ w
    y.mul_(2)
    return F.softmax(y @ w.cos(), -1)


def pointwise(x: Any, w: Any) -> Any:
    return (x * w).sin() + w


def gradients(f: Any, forward: bool, backward: bool, dtype: torch.dtype) -> Any:
    """The results and gradients of two calls, each in autocast or not."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
        with torch.autocast("cpu", dtype=dtype, enabled=forward):
            y = f(x, w)
        with torch.autocast("cpu", dtype=dtype, enabled=backward):
            y.float().square().sum().backward()
        found += [y.detach(), x.grad, w.grad, torch.rand(2)]
    return found


@pytest.mark.sampled(16)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("program", [products, partly, random, written, pointwise])
def test_a_backward_under_autocast(program: Any, forward: bool, backward: bool) -> None:
    jitted = tj.jit(program)
    for dtype in (torch.bfloat16, torch.float16):
        mine = gradients(jitted, forward, backward, dtype)
        eagers = gradients(program, forward, backward, dtype)
        for got, expected in zip(mine, eagers, strict=True):
            close = 1e-2 * forward  # without tj-autocast, casts are not shared
            torch.testing.assert_close(got, expected, rtol=close, atol=close)


@pytest.mark.parametrize("forward", [False, True])
def test_where_nothing_is_cast_the_program_does_not_run_again(
    forward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(self: Any) -> Any:
        raise AssertionError("the program runs again")

    monkeypatch.setattr(Variants, "again", property(again))
    program = products if forward else pointwise
    gradients(tj.jit(program), forward, True, torch.bfloat16)
    with pytest.raises(AssertionError, match="runs again"):
        gradients(tj.jit(products), False, True, torch.bfloat16)


def test_a_module_with_statistics() -> None:
    def step(train: Any, net: nn.Module) -> Any:
        torch.manual_seed(0)
        x = torch.randn(8, 3, 6, 6)
        loss = train(x).square().mean()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss.backward()
        return loss.detach(), [p.grad for p in net.parameters()], [*net.buffers()]

    def made() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))

    mine, eagers = made(), made()
    assert_equal(step(tj.jit(mine), mine), step(eagers, eagers))


def test_second_gradients_under_autocast() -> None:
    def second(f: Any) -> Any:
        torch.manual_seed(0)
        x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
        y = f(x, w).sum()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            g.square().sum().backward()
        return g.detach(), x.grad, w.grad

    assert_equal(second(tj.jit(products)), second(products))
