"""Single calls that are regions: those with slow kernels in PyTorch, on large tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

Program = Callable[..., torch.Tensor]


def _image(n: int = 128, **more: Any) -> torch.Tensor:
    return torch.randn(2, 8, n, n, **more)


def _flat(**more: Any) -> torch.Tensor:
    return torch.randn(512, 512, **more)


PAYS: dict[str, tuple[Program, Callable[[], torch.Tensor]]] = {
    "tanh": (torch.tanh, _flat),
    "tanh of halves": (torch.tanh, lambda: _flat(dtype=torch.bfloat16)),
    "gelu": (F.gelu, lambda: torch.randn(1024, 512)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), _flat),
    "maximum pool": (lambda x: F.max_pool2d(x, 3, 2, 1), _image),
    "average pool": (lambda x: F.avg_pool2d(x, 2), _image),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), lambda: _image(64)),
    "instance norm": (F.instance_norm, _image),
    "loss": (lambda x: F.mse_loss(x, x.detach().flip(0)), _flat),
    "variance": (lambda x: x.var(1), _flat),
    "columns": (lambda x: x.softmax(0), lambda: torch.randn(1024, 600)),
    "across": (lambda x: x.t() + x, _flat),
    "copy": (lambda x: x.permute(0, 2, 3, 1).contiguous(), _image),
}
"""Programs of one call that computes, and makers of their arguments."""

DOES_NOT: dict[str, tuple[Program, Callable[[], torch.Tensor]]] = {
    "small": (torch.tanh, lambda: torch.randn(64, 64)),
    "fast": (torch.relu, _flat),
    "fast, of halves": (torch.atan, lambda: _flat(dtype=torch.float16)),
    "another type": (torch.tanh, lambda: _flat(dtype=torch.float64)),
    "along rows": (lambda x: x + x, lambda: _flat().t()),
    "channels last": (
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda: _image().to(memory_format=torch.channels_last),
    ),
    "a product": (lambda x: x @ x, _flat),
    "a view": (lambda x: x.t(), _flat),
    "bools": (torch.logical_not, lambda: _flat() > 0),
}


def _regions(jitted: Any) -> int:
    return len(jitted.__tj__.session.regions.kernels)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PAYS)
def test_slow_calls_are_regions(name: str, fusing: Any) -> None:
    program, make = PAYS[name]
    x = make()
    jitted = fusing(program)
    with torch.no_grad():
        torch.testing.assert_close(jitted(x), program(x))
        assert jitted(x).stride() == program(x).stride()
    assert _regions(jitted) == 1


@pytest.mark.parametrize("name", DOES_NOT)
def test_others_stay_kernels_of_pytorch(name: str, fusing: Any) -> None:
    program, make = DOES_NOT[name]
    jitted, x = fusing(program), make()
    with torch.no_grad():
        torch.testing.assert_close(jitted(x), program(x), rtol=0, atol=0)
    assert _regions(jitted) == 0


@pytest.mark.slow
def test_gradients(fusing: Any) -> None:
    x = torch.randn(512, 512, requires_grad=True)
    tangent = torch.randn(512, 512)
    for program in (torch.tanh, lambda x: F.gelu(x, approximate="tanh")):
        found, exact = fusing(program)(x), program(x.double())
        torch.testing.assert_close(found, program(x))
        (got,) = torch.autograd.grad(found, x, tangent)
        (expected,) = torch.autograd.grad(exact, x, tangent.double())
        torch.testing.assert_close(got, expected.float())


def test_the_option_counts_calls(fusing: Any) -> None:
    x = _flat()
    jitted = fusing(torch.tanh, {"minimum": 3})
    jitted(x)
    assert _regions(jitted) == 0
    assert "it needs 3 calls that compute, and has 1" in str(tj.explain(jitted))


def test_why_a_single_call_is_no_region(fusing: Any) -> None:
    jitted = fusing(torch.relu)
    jitted(_flat())
    assert "it is one call, which PyTorch's kernel runs as fast" in str(tj.explain(jitted))


@pytest.mark.slow
def test_sizes_that_are_symbols(fusing: Any) -> None:
    jitted = fusing(torch.tanh, dynamic=True)
    for n in (600, 700, 0, 1, 2):
        x = torch.randn(n, 512)
        with torch.no_grad():
            torch.testing.assert_close(jitted(x), torch.tanh(x))
    assert _regions(jitted) == 1


@pytest.mark.slow
def test_large_arguments_of_gelu(fusing: Any) -> None:
    """Nothing is left of a large negative number, however many digits its erf has."""
    x = torch.cat([-torch.logspace(-40, 38, 200_000), torch.logspace(-40, 38, 200_000)])
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0] * 40)
    with torch.no_grad():
        jitted = fusing(lambda x: F.gelu(x) * 1.0)
        found, exact = jitted(x), F.gelu(x.double())
        torch.testing.assert_close(found, exact.float(), rtol=2e-6, atol=1e-6)
        expected = F.gelu(ends.double()).float()  # of float32, eager's is NaN at infinity
        torch.testing.assert_close(jitted(ends), expected, equal_nan=True, rtol=0, atol=0)


def test_calls_that_fill_tensors_are_no_region() -> None:
    def program() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(2, 3), torch.ones(3)

    jitted = tj.jit(program, session=tj.Session(("inductor", "torch")))
    jitted()
    assert "inductor" not in tj.last_trace(jitted).python()
