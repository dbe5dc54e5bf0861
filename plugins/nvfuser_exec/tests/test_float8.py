"""Casts from and to 8-bit floats, and matrix products of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_nvfuser.testing.plugin import ReferencePlugin
from tj_nvfuser.testing.reference import Reference

if TYPE_CHECKING:
    from tj_core.extend import Device

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
EDGES = [0.0, -0.0, 1e-9, 0.0009, 0.0019, 1.05, 447.0, 448.0, 463.9, 464.0, 464.1, 480.0, 6e4, 1e9]
VALUES = torch.tensor([*EDGES, *(-x for x in EDGES), float("inf"), -float("inf"), float("nan")])


def bits(x: torch.Tensor) -> torch.Tensor:
    """Bits of ``x`` as integers; all NaNs are equal."""
    return x.view(torch.uint8).masked_fill(x.float().isnan(), 127)


def only_inside(jitted: Any) -> None:
    (use,) = tj.explain(jitted).regions
    assert use.kernel.failure is None
    names = {c.symbol.qualname for c in use.kernel.region.body.calls}
    assert any("_to_copy" in name or "_scaled_mm" in name for name in names)


@pytest.mark.usefixtures("on_reference")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_casts_to_8_bits_are_eagers(dtype: torch.dtype, fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 1.0).to(E4)

    jitted, x = fusing(f, {"minimum": 1}), VALUES.to(dtype)
    assert torch.equal(bits(jitted(x)), bits(f(x)))
    only_inside(jitted)


@pytest.mark.parametrize("kind", [E4, E5], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_casts_from_8_bits_are_eagers(kind: Any, dtype: torch.dtype, fusing: Any) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(kind)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) * 1

    jitted = fusing(f, {"minimum": 1})
    torch.testing.assert_close(jitted(x), f(x), rtol=0, atol=0, equal_nan=True)
    only_inside(jitted)


def declined(f: Callable[..., Any], target: Reference, *args: torch.Tensor) -> str:
    """Reason why the first call runs outside of regions; the results must still be eager's."""
    overrides = {"strict": True, "nvfuser_reference": {"minimum": 1, "matmul": True}}
    session = tj.Session((ReferencePlugin(target), "autograd", "torch"), overrides=overrides)
    jitted = tj.jit(f, session=session)
    torch.testing.assert_close(jitted(*args).float(), f(*args).float(), equal_nan=True)
    return str(tj.explain(jitted))


def test_what_would_be_infinite_runs_in_eager() -> None:
    assert "no infinite float8_e5m2" in declined(lambda x: x.to(E5), Reference(), VALUES)


@pytest.mark.usefixtures("on_reference")
def test_integers_run_in_eager() -> None:
    text = declined(lambda x: x.to(E4), Reference(), torch.arange(9))
    assert "no casts between integers and float8" in text


def test_devices_without_8_bits() -> None:
    class Older(Reference):
        def capability(self, device: Device) -> tuple[int, int]:
            return 8, 6

    assert "computes with no float8_e4m3fn" in declined(lambda x: x.to(E4), Older(), VALUES)


def scaled(**how: Any) -> Callable[..., torch.Tensor]:
    def f(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x = torch._scaled_mm(a, b.t(), s, t, **how)
        return x.float() * 2

    return f


def factors() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    a, b = torch.randn(32, 64).to(E4), torch.randn(16, 64).to(E4)
    return a, b, torch.tensor(0.5), torch.tensor(2.5)


def test_scaled_products(fusing: Any) -> None:
    bias = torch.randn(16, dtype=torch.bfloat16)
    for how in ({}, {"bias": bias}):
        f = scaled(out_dtype=torch.bfloat16, **how)
        jitted = fusing(f, {"minimum": 1, "matmul": True})
        torch.testing.assert_close(jitted(*factors()), f(*factors()))
        only_inside(jitted)


@pytest.mark.usefixtures("on_reference")
def test_scaled_products_that_nvfuser_has_not() -> None:
    fast = scaled(out_dtype=torch.bfloat16, use_fast_accum=True)
    assert "sums of less precision" in declined(fast, Reference(), *factors())
