"""Gathers that run again in the backward, and the order of collectives, on two processes."""

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

FILE = str(Path(__file__).with_name("gathered.py"))


def run(ranks: Ranks, name: str, *args: Any) -> list[dict[str, Any]]:
    found = ranks.run(FILE, name, *args)
    assert all(isinstance(one, dict) for one in found), found
    return found


def test_gathers_run_again_where_a_tag_asks(ranks: Ranks) -> None:
    """ZeRO-2 by SAVE, ZeRO-3 by RECOMPUTE; without a tag, what is gathered is saved."""
    kept, again, saved = (run(ranks, "train", tag) for tag in (None, "RECOMPUTE", "SAVE"))
    for one in (*kept, *again, *saved):
        assert not differences(one["eager"], one["jitted"])
    if "forward" not in kept[0]:  # before PyTorch 2.13
        return
    for one in (*kept, *again, *saved):
        assert one["fallbacks"] == []
        assert one["forward"] == 6 * "G"
    for zero2, zero3, tagged in zip(kept, again, saved, strict=True):
        assert zero2["backward"] == tagged["backward"] == 6 * "R"
        assert zero3["backward"].count("G") > 0
        assert zero3["backward"].count("R") == 6
        assert zero3["saved"] < zero2["saved"] <= tagged["saved"]
    assert again[0]["backward"] == again[1]["backward"]


def test_a_budget_may_choose_gathers(ranks: Ranks) -> None:
    for one in run(ranks, "train", None, 0.1):
        assert not differences(one["eager"], one["jitted"])
        assert "forward" not in one or "G" in one["backward"]


def test_a_reduction_does_not_run_again_and_explain_says_why(ranks: Ranks) -> None:
    for one in run(ranks, "reduced"):
        assert (one["forward"], one["backward"]) == ("A", "")
        tags = one["explained"].partition("\ntags:\n")[2]
        assert "keeps its order (collective:0)" in tags
        started = one["explained"].partition("\nstarted:\n")[2].splitlines()[1].split()
        assert started[1:4] == ["all_reduce", "0", "24"]


def test_collectives_are_ordered_by_group(ranks: Ranks) -> None:
    for one in run(ranks, "groups"):
        first, second = one["names"]
        assert first != second
        assert one["equal"]
        assert one["ordered"] == [
            (f"collective:{first}",), ("wait",), (f"collective:{second}",), ("wait",)
        ]  # fmt: skip


@pytest.mark.parametrize(("reduce", "forward", "backward"), [(False, "G", "GR"), (True, "A", "")])
def test_checkpointed_gathers_run_again_and_sums_do_not(
    reduce: bool, forward: str, backward: str, ranks: Ranks
) -> None:
    """In eager all run again; sums are the same in the second run, and are saved."""
    for one in run(ranks, "checkpointed", reduce):
        assert not differences(one["eager"], one["jitted"])
        if "forward" in one:  # not before PyTorch 2.13
            assert (one["forward"], one["backward"]) == (forward, backward)
