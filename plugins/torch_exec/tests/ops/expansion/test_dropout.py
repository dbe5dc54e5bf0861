"""Dropout that drops nothing returns its input, with fixed sizes and with symbols."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

PROGRAMS = {
    "in eval": lambda x: F.dropout(x, 0.5, False),
    "of none": lambda x: F.dropout(x, 0.0, True),
    "twice": lambda x: F.dropout(F.dropout(x, 0.5, False), 0.1, False),
    "a layer": torch.nn.Dropout(0.5).eval(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_returns_its_input(name: str, grad: bool, dynamic: bool) -> None:
    program: Callable[[torch.Tensor], torch.Tensor] = PROGRAMS[name]
    jitted = tj.jit(program, dynamic=dynamic)
    for rows in (3, 5):
        x = torch.ones(rows, 4, requires_grad=grad)
        assert jitted(x) is x
        assert program(x) is x
    assert not tj.stats(jitted).fallbacks
