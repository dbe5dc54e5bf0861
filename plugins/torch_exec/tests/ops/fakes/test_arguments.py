"""Calls whose fake kernels take their arguments for others, or have no right results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch

QUANTIZED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "numbers": lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8),
    "tensors": lambda x: torch.quantize_per_tensor(
        x, torch.tensor(0.1), torch.tensor(3), torch.qint8
    ),
    "several": lambda x: torch.quantize_per_tensor(
        [x, x], torch.tensor([0.1, 0.2]), torch.tensor([3, 4]), torch.quint8
    )[1],
    "channels": lambda x: torch.quantize_per_channel(
        x, torch.full((3,), 0.1), torch.zeros(3), 0, torch.qint8
    ),
}


@pytest.mark.filterwarnings("default:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_values_are_made_in_eager(name: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = QUANTIZED[name](x.sin())
        return q, q.dequantize() * 2, q.int_repr() + 1

    jitted, x = tj.jit(program), torch.arange(3.0)
    with pytest.warns(tj.TjWarning, match="graph break|not captured"):
        found = jitted(x)
    for results in (found, jitted(x)):
        assert results[0].is_quantized
        assert all(map(torch.equal, results, program(x)))
