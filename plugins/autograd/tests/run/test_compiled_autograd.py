"""Compiled autograd over jitted functions: PyTorch captures the backward, tj's node within it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch
from torch._dynamo import compiled_autograd

Program = Callable[..., torch.Tensor]

# Compiled autograd asks saved tensors that are no leaves for gradients, and hides the warning of
# that from those that show warnings, which does not help where warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin() * 2


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 3
    y[:, 0].mul_(2)
    return (y @ w).exp()


def _gradients(f: Program, scale: float) -> list[torch.Tensor]:
    """Gradients of two arguments, after two calls that accumulate into them."""
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 3, requires_grad=True)
    for _ in range(2):
        f(x * scale, w).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return [x.grad, w.grad]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("f", [product, written])
def test_the_backward_is_captured(f: Program, backend: str) -> None:
    jitted = tj.jit(f)
    for scale in (1.0, 2.0):
        with compiled_autograd._enable(torch.compile(backend=backend)):
            mine = _gradients(jitted, scale)
        torch.testing.assert_close(mine, _gradients(f, scale), rtol=0, atol=0)


@pytest.mark.parametrize("f", [product, written])
def test_a_compiled_step_calls_a_jitted_function(f: Program) -> None:
    jitted = tj.jit(f)
    step = torch.compile(lambda: _gradients(jitted, 1.0), backend="eager")
    with torch._dynamo.config.patch(compiled_autograd=True):
        mine = step()
    torch.testing.assert_close(mine, _gradients(f, 1.0), rtol=0, atol=0)
