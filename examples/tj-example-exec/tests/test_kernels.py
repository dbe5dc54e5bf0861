"""The kernels against the PyTorch functions they stand for, within the stated tolerance."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from tj_example_exec import kernels

INPUTS = {
    "vector": torch.linspace(-30, 30, 601),
    "matrix": torch.linspace(-4, 4, 96).reshape(8, 12),
    "transposed": torch.linspace(-4, 4, 96).reshape(12, 8).t(),
    "scalar": torch.tensor(0.5),
    "empty": torch.empty(0, 3),
    "extreme": torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e4, -1e4]),
}

close = functools.partial(torch.testing.assert_close, check_stride=True)
tensors = pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)


@tensors
def test_gelu(x: torch.Tensor) -> None:
    close(kernels.gelu(x, "tanh"), F.gelu(x, approximate="tanh"))


@tensors
def test_silu(x: torch.Tensor) -> None:
    close(kernels.silu(x), F.silu(x))


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 5)])
@pytest.mark.parametrize("dims", [(0, 1, 2), (1, 0, 2)], ids=["dense", "permuted"])
def test_rms_norm(
    dims: tuple[int, ...], shape: tuple[int, ...], weighted: bool, eps: float | None
) -> None:
    given = [(3, 4, 5), (4, 3, 5)][dims[0]]
    x = torch.linspace(-4, 4, 60).reshape(given).permute(dims)
    weight = torch.rand(shape) if weighted else None
    expected = F.rms_norm(x, shape, weight, eps)
    close(kernels.rms_norm(x, shape, weight, eps), expected)


def test_arguments_are_not_written() -> None:
    x = torch.linspace(-4, 4, 12)
    before = x.clone()
    kernels.gelu(x, "tanh")
    kernels.silu(x)
    kernels.rms_norm(x, (12,), x)
    assert torch.equal(x, before)
