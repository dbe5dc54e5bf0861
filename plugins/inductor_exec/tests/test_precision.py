"""Rounding in regions: low precision, autocast, equal layers, second derivatives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_suites.fused import regions
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.sampled(10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_rounds_where_eager_rounds(dtype: torch.dtype, fusing: Any) -> None:
    """Between fused operations too: equal to the bit for operations that are rounded exactly."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return ((x * 1.001 + y) * 3 - x) * y, (x.float() * 2 + 1).to(dtype) * y

    x, y = torch.randn(64, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype)
    jitted = fusing(f)
    assert all(map(torch.equal, jitted(x, y), f(x, y)))
    assert len(regions(jitted)) == 1
    fast = fusing(f, {"emulate_precision": False})
    assert not all(map(torch.equal, fast(x, y), f(x, y)))
    for a, b in zip(fast(x, y), f(x, y), strict=True):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)


def test_gradients_of_gradients(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.tanh() * x.exp()).sum()

    results = []
    for g in (fusing(f), f):
        torch.manual_seed(0)
        x = torch.randn(5, 4, requires_grad=True)
        (first,) = torch.autograd.grad(g(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        results.append((first, second))
    torch.testing.assert_close(*results)


def test_autocast_that_is_lowered_is_fused() -> None:
    pytest.importorskip("tj_autocast")

    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.tanh(x @ w).exp() * 2 + w.sum()

    plugins = ("inductor", "autograd", "autocast", "torch")
    jitted = tj.jit(f, session=tj.Session(plugins, overrides={"check": 2}))
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    out = jitted(x, w)
    out.sum().backward()
    for which in ("forward", "backward"):
        assert any(c.executor == "inductor" for c in tj.last_trace(jitted, which).calls)
    mine, w.grad = w.grad, None
    expected = f(x, w)
    expected.sum().backward()
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(mine, w.grad, rtol=0.02, atol=0.05)


def test_what_runs_in_full_precision_does_under_autocast_of_the_caller() -> None:
    """PyTorch computes attention by products in float32 there, and rounds the result once."""
    pytest.importorskip("tj_autocast")

    def f(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, k)

    plugins = ("inductor", "autograd", "autocast", "torch")
    q, k = (torch.randn(1, 2, 64, 16, dtype=torch.bfloat16) for _ in range(2))
    exact = f(q.double(), k.double())
    for recorded in (False, True):
        jitted = tj.jit(f, session=tj.Session(plugins, overrides={"check": 2}))
        with torch.set_grad_enabled(recorded), torch.autocast("cpu", dtype=torch.bfloat16):
            mine, theirs = (g(q, k.requires_grad_(recorded)) for g in (jitted, f))
        assert regions(jitted) != []
        assert (mine - exact).abs().mean() <= 1.1 * (theirs - exact).abs().mean()
        if recorded:
            ours, expected = (torch.autograd.grad(y.sum(), k)[0] for y in (mine, theirs))
            assert (ours != expected).float().mean() < 0.05


NORMS = {
    "batch": (torch.nn.BatchNorm1d(8), (4, 8, 16)),
    "group": (torch.nn.GroupNorm(4, 8), (4, 8, 16)),
    "instance": (torch.nn.InstanceNorm1d(8, affine=True), (4, 8, 16)),
    "layer": (torch.nn.LayerNorm(16), (4, 8, 16)),
    "rms": (torch.nn.RMSNorm(16), (4, 8, 16)),
}


@pytest.mark.parametrize("more", [False, True], ids=["alone", "among others"])
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_norms_whose_parameters_are_wide(name: str, more: bool, fusing: Any) -> None:
    """As autocast makes them: the saved statistics and such gradients are in float32.

    The reference is float64, as eager's layer norm adds gradients of parameters in half precision.
    """
    module, shape = NORMS[name]

    def f(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return m(x * 2) * 4 if more else m(x)  # which rounds nothing

    x = torch.randn(shape).mul(3).add(5).bfloat16().requires_grad_()
    tangent = torch.randn(shape).bfloat16()
    mine, wide = copy.deepcopy(module), copy.deepcopy(module).double()
    exact = x.detach().double().requires_grad_()
    f(wide, exact).backward(tangent.double())
    out = fusing(lambda x: f(mine, x))(x)
    assert out.dtype is torch.bfloat16
    out.backward(tangent)
    torch.testing.assert_close(x.grad, exact.grad.bfloat16(), rtol=2e-2, atol=1e-2)
    for p, q in zip(mine.parameters(), wide.parameters(), strict=True):
        assert p.grad.dtype is torch.float32
        torch.testing.assert_close(p.grad, q.grad.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_running_statistics_in_half_precision(dtype: torch.dtype, fusing: Any) -> None:
    """Fake kernels say that they are float32 afterwards."""

    def f(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> Any:
        y, *_ = torch._native_batch_norm_legit(x, None, None, mean, variance, True, 0.5, 1e-5)
        return y + 1, mean * 2, variance * 2

    def given() -> tuple[torch.Tensor, ...]:
        return x.clone(), torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype)

    x = torch.randn(3, 4, 5, dtype=dtype)
    mine, theirs = given(), given()
    torch.testing.assert_close(fusing(f)(*mine), f(*theirs), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
