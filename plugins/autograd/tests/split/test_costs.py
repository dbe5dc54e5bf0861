"""Costs of calls, which executors are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tj_core as tj
import torch
from tj_autograd.joint.repeatable import REPEATABLE
from tj_autograd.split.cheap import RECOMPUTE
from tj_autograd.split.costs import Costs
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Executor
from tj_core.contract.fusion import Fusion
from tj_core.contract.rules import RuleTable

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol


def test_executors_are_asked_once_for_equal_layers() -> None:
    asked = []

    def can_fuse(call: BoundSymbol) -> bool | Decline:
        asked.append(call.label)
        return len(asked) == 1 or Decline("no")

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.nn.functional.leaky_relu(x, 0.5)
        return torch.nn.functional.leaky_relu(x, 0.25)

    jitted = tj.jit(f)
    jitted(torch.ones(3))
    calls = tj.last_trace(jitted, stage="FUNCTIONAL").calls
    executor = Executor("e", RuleTable("claim"), fusion=Fusion(can_fuse, lambda region: None))
    costs = Costs([executor], RuleTable(RECOMPUTE), RuleTable(REPEATABLE))
    assert [costs.fuses(call) for call in calls] == [True] * 4 + [False]
    assert [costs.fuses(call) for call in calls] == [True] * 4 + [False]
    assert len(asked) == 3  # of the last call, its part as well
