"""Jitted stages in PyTorch's schedules of pipelines, on two processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tj_conformance.oracle.compare import differences
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

FILE = str(Path(__file__).with_name("pipelined.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", ["Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"]
)
def test_training(schedule: str, ranks: Ranks) -> None:
    """Gradients of inputs and of weights may be asked apart: nothing is computed twice."""
    for one in ranks.run(FILE, "compared", schedule):
        assert isinstance(one, dict), one
        assert not differences(one["eager"], one["jitted"])
        assert one["said"] == []
        assert set(one["entries"]) == {1}
        assert one["products of jitted"] <= one["products of eager"]
