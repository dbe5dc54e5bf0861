"""Records of constants, such as configurations, which Dynamo leaves to calls."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import tj_core as tj
import torch

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Setting(NamedTuple):
    scale: float
    offset: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float


@torch.compiler.allow_in_graph
def by_setting(x: torch.Tensor, setting: Any) -> torch.Tensor:
    return x * setting.scale


@pytest.mark.parametrize("make", [lambda: Setting(3.0, 1), lambda: Frozen(3.0)])
def test_a_record_of_constants_is_a_constant(make: Any) -> None:
    """A record's constructor changes nothing, so calls after it are known."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return by_setting(x.sin(), make()) + 1

    g = tj.jit(f)
    for x in (X, X + 1):
        assert torch.equal(g(x), f(x))
    assert tj.stats(g).fallbacks == ()
    assert [c.symbol.qualname for c in tj.last_trace(g, stage="ACQUIRED").calls][-1] == "torch.add"
    assert all("side_effect" not in c.effects.ordered for c in tj.last_trace(g).calls)
