"""Elementary functions of kernels: as near as PyTorch's, or as the documentation says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_inductor.elementary import with_fast_erf, with_fast_exp, with_fast_tanh
from torch._inductor import config

BITS = torch.arange(0, 0x7F80_0000, 19973, dtype=torch.int32)
NUMBERS = BITS.view(torch.float32)
"""Positive numbers of all sizes."""

ENDS = [
    float("inf"),
    float("-inf"),
    0.0,
    -0.0,
    9.1,
    -9.1,
    88.72,
    88.73,
    -87.4,
    -103.0,
    -104.0,
    1e-45,
]

LARGEST = {"exp": 1.3e-7, "sigmoid": 2e-7, "tanh": 4e-7, "erf": 4e-7, "expm1": 1.3e-7}
"""Largest relative errors."""


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("simdlen", [None, 256, 1])
@pytest.mark.parametrize("name", LARGEST)
def test_float32(name: str, simdlen: int | None, fusing: Any) -> None:
    function: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, name)
    with config.patch({"cpp.simdlen": simdlen}):
        jitted = fusing(lambda x: function(x * 1.0) * 1.0)
        x = torch.cat([NUMBERS, -NUMBERS, torch.linspace(-110, 100, 100_001)])
        found = jitted(x)
        exact = function(x.double())
        normal = (exact.abs() > 2e-38) & (exact.abs() < 3.4e38)
        error = ((found.double() - exact) / exact).abs()[normal]
        assert error.max() < LARGEST[name]
        torch.testing.assert_close(found, function(x))
        assert (found.double() - exact).abs()[exact.abs() < 1e-38].max() < 4e-39
        for times in (1, 3):
            ends = torch.tensor(ENDS * times)
            found, expected = jitted(ends), function(ends)
            torch.testing.assert_close(found, expected, atol=3e-45, rtol=2e-7)
            assert torch.equal(found.signbit(), expected.signbit())
            assert jitted(torch.full((times * 16 + 1,), float("nan"))).isnan().all()


@pytest.mark.slow
def test_other_types(fusing: Any) -> None:
    jitted = fusing(lambda x: (torch.tanh(x * 1.0) * 1.0, torch.exp(x + 1), torch.sigmoid(x)))
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        for n in (1, 100, 5000):
            x = (torch.randn(n) * 3).to(dtype)
            expected = torch.tanh(x), torch.exp(x + 1), torch.sigmoid(x)
            torch.testing.assert_close(jitted(x), expected)


@pytest.mark.slow
def test_tanh_may_be_the_librarys(fusing: Any) -> None:
    x = torch.randn(1600)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 1.0) * 1.0

    own, plain = (fusing(f, {"decompose_tanh": decompose}) for decompose in (True, False))
    assert not torch.equal(own(x), plain(x))
    torch.testing.assert_close(plain(x), torch.tanh(x), rtol=2e-7, atol=0)


KERNEL = 'extern "C"  void  kernel(float* a)\n{\n    at::vec::x;\n    %s\n}\n'


def test_what_is_replaced() -> None:
    tanh = with_fast_tanh(KERNEL % "auto tmp2 = tmp1.tanh(); auto tmp3 = std::tanh(tmp0);")
    assert "tmp2 = tanh_of(tmp1); auto tmp3 = tanh_of(tmp0);" in tanh
    text = "auto tmp2 = tmp1.tanh(); auto tmp4 = tmp3.neg().exp();"
    both = with_fast_exp(with_fast_tanh(KERNEL % text))
    assert "tmp2 = tanh_of(tmp1); auto tmp4 = exp_of(tmp3.neg());" in both
    assert both.count("using Floats") == 1
    erf = with_fast_erf(KERNEL % "auto tmp4 = tmp3.erf(); auto tmp5 = std::erf(tmp0);")
    assert "tmp4 = erf_of(tmp3); auto tmp5 = std::erf(tmp0);" in erf
    one = with_fast_exp(KERNEL % "auto tmp4 = tmp3.exp() - decltype(tmp3)(1);")
    assert "tmp4 = tmp3.expm1();" in one
    assert "exp_of" not in one
    scalar = KERNEL.replace("at::vec::x", "") % "std::tanh(tmp3);"
    assert with_fast_tanh(scalar) == scalar
    assert with_fast_exp(KERNEL % "std::exp(tmp3);") == KERNEL % "std::exp(tmp3);"
    assert with_fast_tanh(KERNEL % "tmp3.exp();") == KERNEL % "tmp3.exp();"
