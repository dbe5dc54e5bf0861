"""Gradients that add up without communication: equal to ``fully_shard`` to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tj_conformance.oracle.compare import differences
from torch import distributed

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

FILE = str(Path(__file__).with_name("accumulated.py"))
SYNC = (True, False, False, True, True, False, True)
NAMES = (
    "gathered again", "saved", "checkpointed", "tied", "uneven", "in bfloat16", "all in bfloat16",
)  # fmt: skip


def check(ranks: Ranks, name: str, replicas: bool = False) -> None:
    for found in ranks.run(FILE, "compared", name, replicas):
        assert isinstance(found, dict), found
        assert not differences(found["eager"], found["jitted"])
        assert found["fallbacks"] == []
        assert found["entries"] == 2, "one for each way"
        for kind in ("reductions", "reductions of fully_shard"):
            assert [bool(n) for n in found[kind]] == list(SYNC)


def test_microbatches(ranks: Ranks) -> None:
    """Modules of one parameter: ``fully_shard`` has buckets of one, too."""
    for found in ranks.run(FILE, "compared", "gathered again", False, True):
        assert isinstance(found, dict), found
        assert not differences(found["eager"], found["jitted"])
        assert found["entries"] == 2
        assert found["reductions"] == found["reductions of fully_shard"]
        assert found["reductions"] == [2 * sync for sync in SYNC]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_microbatches(name: str, ranks: Ranks) -> None:
    check(ranks, name)


@pytest.mark.slow
def test_replicas_of_shards(four: Ranks) -> None:
    check(four, "gathered again", True)


def test_other_orders_of_forwards_and_backwards(ranks: Ranks) -> None:
    for found in ranks.run(FILE, "edges"):
        assert isinstance(found, dict), found
        assert all(found.values()), found


@pytest.mark.slow
def test_what_is_saved(ranks: Ranks) -> None:
    """Parameters are gathered again in the backward whether it reduces or not."""
    for found in ranks.run(FILE, "saved"):
        assert isinstance(found, dict), found
        assert found["reshard=False, sync=True"] == found["reshard=False, sync=False"]
        reduced, kept = found["reshard=True, sync=True"], found["reshard=True, sync=False"]
        # Two shards of the rank with fewer rows are padded.
        assert reduced <= kept <= reduced + 2 * 4 * 6 * 4
        assert kept < found["reshard=False, sync=False"]
