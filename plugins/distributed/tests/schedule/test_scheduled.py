"""Collectives that start early and are waited for late, on two processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tj_conformance.oracle.compare import differences
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

HERE = Path(__file__)
GATHERED, SCHEDULED = HERE.parents[1] / "gathered.py", HERE.with_name("scheduled.py")


def run(ranks: Ranks, file: Path, name: str, *args: Any) -> list[dict[str, Any]]:
    found = ranks.run(str(file), name, *args)
    assert all(isinstance(one, dict) for one in found), found
    for one in found:
        assert not differences(one["eager"], one["jitted"])
        assert one["fallbacks"] == []
    return found


def test_gathers_run_ahead_and_reductions_are_waited_for_last(ranks: Ranks) -> None:
    """ZeRO-3: values are eager's to the bit, and both ranks have one order."""
    one, other = run(ranks, GATHERED, "train", "RECOMPUTE")
    assert one["drawn"] == other["drawn"]
    assert one["drawn"] == ("GGGwGw..GwGw.ww.", "GG..Rw...R..R.w...R...R..Rwwwwww")
    assert one["between"] == {"": [0, 0, 2, 2, 1, 1], "backward": [2, 8, 14, 11, 9, 5, 2, 0]}


@pytest.mark.slow
def test_small_collectives_start_as_one(ranks: Ranks) -> None:
    """Up to 2 KB together; a weight of 4 KB starts for itself."""
    one, other = run(ranks, GATHERED, "train", "RECOMPUTE", 1.0, (("bucket_mb", 0.002),))
    assert one["drawn"] == other["drawn"]
    assert one["drawn"] == ("GGww..ww.ww.", "GGw......w...R.......Rwwwwww")


@pytest.mark.slow
def test_without_overlap_collectives_stay_where_they_are(ranks: Ranks) -> None:
    (one, _) = run(ranks, GATHERED, "train", "RECOMPUTE", 1.0, (("overlap", False),))
    assert one["drawn"] == ("GwGw..GwGw.GwGw.", "Gw....Rw.Rw.Gw....Rw.Rw....Rw.Rw")


def test_reductions_start_as_soon_as_gradients_are_there(ranks: Ranks) -> None:
    """The mean, which is computed of them for the results alone, comes last."""
    one, other = run(ranks, SCHEDULED, "reduced", False, {"bucket_mb": 0.0})
    assert one["drawn"] == other["drawn"]
    assert one["drawn"] == ".........A...A.....A...A.....A...A.....A.Aw.w.w.w.w.w.w.w."
    assert [between for _, between in one["started"]] == [25, 23, 19, 17, 13, 11, 7, 7]


@pytest.mark.slow
def test_buckets_of_reductions_start_with_their_last_gradient(ranks: Ranks) -> None:
    (one, _) = run(ranks, SCHEDULED, "reduced", False, {"bucket_mb": 0.002})
    assert one["drawn"] == ".................A........A........A.Aw.w.w.w.w.w.w.w."
    assert one["started"] == [
        ("all_reduce_coalesced", 17), ("all_reduce_coalesced", 12), ("all_reduce_coalesced", 6),
        ("all_reduce", 7),
    ]  # fmt: skip


def test_a_transposed_value_is_reduced_alone(ranks: Ranks) -> None:
    """The coalesced operator would return it in other strides, says its fake kernel."""
    one, other = run(ranks, SCHEDULED, "transposed")
    assert one["drawn"] == other["drawn"]
    assert one["drawn"].count("A") == 2


SLOW: dict[str, float] = {"bucket_mb": 0.0, "network_gbs": 1e-6}
FREE: dict[str, float] = {"bucket_mb": 0.0, "network_gbs": 1e9, "latency_us": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "order"), [(SLOW, ".A.A.A.A.A.A.A.Awwwwwwww."), (FREE, ".AAAAAAAAwwwwwwww.")]
)
def test_a_fence_stands_where_it_hides_more_than_it_costs(
    options: dict[str, float], order: str, ranks: Ranks
) -> None:
    """Regions of an executor that fuses end at a reduction if the network takes time."""
    one, other = run(ranks, SCHEDULED, "reduced", True, options)
    assert one["drawn"] == other["drawn"]
    assert one["drawn"] == order
    assert one["regions"] == order.count(".")
