"""The kernels against the PyTorch functions they stand for, within the stated tolerance."""

from __future__ import annotations

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

tensors = pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)


@tensors
def test_gelu(x: torch.Tensor) -> None:
    torch.testing.assert_close(kernels.gelu(x, "tanh"), F.gelu(x, approximate="tanh"))


@tensors
def test_silu(x: torch.Tensor) -> None:
    torch.testing.assert_close(kernels.silu(x), F.silu(x))


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 5)])
def test_rms_norm(shape: tuple[int, ...], weighted: bool, eps: float | None) -> None:
    x = torch.linspace(-4, 4, 60).reshape(3, 4, 5)
    weight = torch.rand(shape) if weighted else None
    expected = F.rms_norm(x, shape, weight, eps)
    torch.testing.assert_close(kernels.rms_norm(x, shape, weight, eps), expected)


def test_arguments_are_not_written() -> None:
    x = torch.linspace(-4, 4, 12)
    before = x.clone()
    kernels.gelu(x, "tanh")
    kernels.silu(x)
    kernels.rms_norm(x, (12,), x)
    assert torch.equal(x, before)
