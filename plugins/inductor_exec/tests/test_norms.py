"""Gradients of group norms: as in eager, in all layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F


def _strides(x: torch.Tensor) -> list[int]:
    """Strides of dimensions with several elements: fake kernels have others of one element."""
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 6, 5, 3), (1, 6, 2, 2), (2, 6, 7), (2, 6, 2, 3, 4)], ids=str)
def test_group_norm(shape: tuple[int, ...], dtype: torch.dtype, affine: bool, fusing: Any) -> None:
    x = torch.randn(shape, dtype=dtype)
    if len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    weights = [torch.randn(6, dtype=dtype) for _ in range(2)] if affine else [None, None]

    def gradients(f: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        given = [None if t is None else t.to(dtype).requires_grad_() for t in (x, *weights)]
        out = f(*given)
        tangent = torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape)
        return list(torch.autograd.grad(out, [t for t in given if t is not None], tangent))

    def program(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        return F.group_norm(x, 3, weight, bias).relu() * 2

    found, exact = gradients(fusing(program), dtype), gradients(program, torch.float64)
    eager = gradients(program, dtype)
    for got, expected, plain in zip(found, exact, eager, strict=True):
        assert (got.dtype, _strides(got)) == (plain.dtype, _strides(plain))
        error, known = ((y.double() - expected).abs().max() for y in (got, plain))
        assert error <= 2 * known + 8 * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_a_maximum_pool_stay_a_kernel_of_pytorch(layout: Any, fusing: Any) -> None:
    x = torch.randn(2, 4, 8, 8).to(memory_format=layout).requires_grad_()
    tangent = torch.randn(2, 4, 4, 4).to(memory_format=layout)

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x.sin(), 3, 2, 1) * 2

    found, expected = (torch.autograd.grad(f(x), x, tangent)[0] for f in (fusing(program), program))
    torch.testing.assert_close(found, expected, check_stride=True)


def test_errors_for_warnings_are_no_business_of_a_region(fusing: Any) -> None:
    x = torch.rand(4, 4) + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.diagonal().log().sum() + 1  # Inductor's lowering calls what is deprecated

    jitted = fusing(program)
    torch.testing.assert_close(jitted(x), program(x))
    assert jitted.__tj__.session.regions.kernels
