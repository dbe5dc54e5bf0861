"""Data parallel training: equal to eager, captured whole, the same collectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tj_conformance.oracle.compare import differences
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_conformance.oracle.compare import Difference
    from tj_distributed.testing import Ranks

FILE = str(Path(__file__).with_name("programs.py"))
NAMES = (
    "ddp_of_jit", "jit_of_ddp", "jit_of_static_ddp", "comm_hook", "accumulation", "inner_changes",
    "unused_parameters", "replicated", "fsdp1", "blocks_then_sharded", "sharded_then_blocks",
    "sharded_gradients_only", "sharded_in_low_precision", "sharded_accumulation",
    "sharded_and_clipped", "joined", "other_lengths", "sharded_checkpoints",
)  # fmt: skip


def check(found: dict[str, Any]) -> list[Difference]:
    """Differences of a program that is captured and starts the collectives of eager."""
    assert isinstance(found, dict), found
    assert found["collectives of jitted"] == found["collectives of eager"]
    assert found["said"] == []
    assert found["fallbacks"] == []
    assert all(found["entries"])
    return differences(found["eager"], found["jitted"])


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", NAMES)
def test_training(name: str, ranks: Ranks) -> None:
    for found in ranks.run(FILE, "run", name):
        assert not check(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "sharded_columns"])
def test_four_ranks(name: str, four: Ranks) -> None:
    """gloo adds up four values in an order that depends on their place in a bucket."""
    for found in four.run(FILE, "run", name):
        assert not check(found)


def test_errors_come_back_by_rank(ranks: Ranks) -> None:
    assert [failure.kind for failure in ranks.run(FILE, "run", "no such")] == 2 * ["StopIteration"]
