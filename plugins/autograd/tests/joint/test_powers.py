"""Gradients of powers whose exponent is a symbol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import Tensor

POWERS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "operator": lambda x, a: x**a,
    "function": torch.pow,
    "keyword": lambda x, a: torch.pow(x, exponent=a),
    "method": lambda x, a: x.pow(a),
    "in place": lambda x, a: (x * 1).pow_(a),
    "assigned": lambda x, a: (x * 1).__ipow__(a),
    "aten": lambda x, a: torch.ops.aten.pow(x, a),
    "complex": lambda x, a: (torch.complex(x.float(), x.float()) ** a).abs(),
    "of a root": lambda x, a: x.abs() ** (a * 0.5),
}

SEQUENCES = ((2, 3, 257, 259), (3, 0, 1, 2), (1, 0, 2, -1, 257), (0.5, 1.5, 0.0, 2.7, 257.0))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("exponents", SEQUENCES, ids=str)
@pytest.mark.parametrize("power", POWERS)
def test_exponents_that_change(power: str, exponents: Sequence[Any], dtype: torch.dtype) -> None:
    """In bfloat16, 257 is 256, and the gradient of a power of that has another sign."""
    f = POWERS[power]
    jitted = tj.jit(f)
    for a in exponents:
        x = torch.tensor([-1.01, -0.99, 0.99, 1.01, 0.0], dtype=dtype, requires_grad=True)
        found, expected = jitted(x, a), f(x, a)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        gradients, wanted = (torch.autograd.grad(y.sum(), x) for y in (found, expected))
        torch.testing.assert_close(gradients, wanted, rtol=0, atol=0, equal_nan=True)


def test_an_exponent_that_is_a_size() -> None:
    def f(x: Tensor) -> Tensor:
        return x ** x.shape[0]

    jitted = tj.jit(f)
    for n in (2, 3, 257):
        x = torch.linspace(-1.01, 1.01, n, dtype=torch.bfloat16, requires_grad=True)
        found, wanted = (torch.autograd.grad(g(x).sum(), x) for g in (jitted, f))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
