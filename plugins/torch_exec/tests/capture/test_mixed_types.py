"""Layers whose parameters get a data type that kernels refuse, and fake kernels take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import tj_core as tj
import torch
from torch import nn

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm without parameters": lambda: nn.BatchNorm1d(4, affine=False),
    "layer norm": lambda: nn.LayerNorm(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.InstanceNorm1d(4, affine=True),
    "cross entropy": lambda: _Loss(nn.CrossEntropyLoss(torch.ones(4))),
    "likelihood": lambda: _Loss(nn.NLLLoss(torch.ones(4))),
}


class _Loss(nn.Module):
    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.loss(x, torch.tensor([0, 1]))
        return found


@pytest.mark.parametrize("name", LAYERS)
def test_the_call_stays_and_raises(name: str) -> None:
    x = torch.ones(2, 4, 3) if name == "instance norm" else torch.ones(2, 4)
    layer = LAYERS[name]()
    jitted = tj.jit(layer)
    assert torch.equal(jitted(x), layer(x))
    assert not any("side_effect" in call.effects.ordered for call in _calls(jitted))
    layer.double()
    jitted.compile_for(x)
    # An executor that decomposed it would compute a result.
    assert any("side_effect" in call.effects.ordered for call in _calls(jitted))
    with pytest.raises(RuntimeError) as expected:
        layer(x)
    with pytest.raises(RuntimeError) as raised:
        jitted(x)
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_parameters_in_float32_for_low_precision(low: torch.dtype) -> None:
    layer, x = nn.LayerNorm(4), torch.ones(2, 4, dtype=low)
    jitted = tj.jit(layer)
    assert torch.equal(jitted(x), layer(x))
    assert not any("side_effect" in call.effects.ordered for call in _calls(jitted))


def _calls(jitted: object) -> list[BoundSymbol]:
    return [*tj.last_traces(jitted)[0].calls]
