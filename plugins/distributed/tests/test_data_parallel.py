"""Data parallel training on two processes: equal to eager, captured whole, the same collectives."""

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

FILE = str(Path(__file__).with_name("programs.py"))
NAMES = (
    "ddp_of_jit", "jit_of_ddp", "jit_of_static_ddp", "comm_hook", "accumulation", "inner_changes",
    "unused_parameters", "replicated", "fsdp1", "blocks_then_sharded", "sharded_then_blocks",
    "sharded_gradients_only", "sharded_in_low_precision", "sharded_accumulation",
    "sharded_and_clipped",
)  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_training(name: str, ranks: Ranks) -> None:
    for found in ranks.run(FILE, "run", name):
        assert isinstance(found, dict), found
        assert not differences(found["eager"], found["jitted"])
        assert found["collectives of jitted"] == found["collectives of eager"]
        assert found["said"] == []
        assert found["fallbacks"] == []
        assert all(found["entries"])


def test_errors_come_back_by_rank(ranks: Ranks) -> None:
    assert [failure.kind for failure in ranks.run(FILE, "run", "no such")] == 2 * ["StopIteration"]
