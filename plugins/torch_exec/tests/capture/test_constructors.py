"""Tensors that a program makes by calls of classes."""

from __future__ import annotations

from typing import Any

import tj_core as tj
import torch


def test_tensors_of_a_size() -> None:
    """A graph would have a tuple for the size, and a tensor of its items."""

    def f(x: torch.Tensor) -> Any:
        made = torch.Tensor(x.size())
        return x * 2, made.shape, torch.FloatTensor(x.shape[:1]).shape, torch.Tensor((2, 3))

    jitted = tj.jit(f)
    for n in (3, 4, 5):
        x = torch.ones(n, 2)
        got, expected = jitted(x), f(x)
        assert got[1:3] == expected[1:3]
        torch.testing.assert_close((got[0], got[3]), (expected[0], expected[3]))
    assert not tj.stats(jitted).fallbacks
