"""Choices that each rank would make for itself, and finished programs with collectives on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

FILE = str(Path(__file__).with_name("choices.py"))


def test_the_first_rank_decides(ranks: Ranks) -> None:
    """All have what one of them has said, of each key; in a later group another may have."""
    for _ in range(2):
        first, second = ranks.run(FILE, "texts")
        assert first == second
        assert len(first) == 3
        assert {text.partition(" ")[0] for text in first} <= {"0", "1"}
        assert [text.partition(" ")[2] for text in first] == ["a", "b", "a"]


@pytest.mark.slow
def test_measured_kernels_are_the_same(ranks: Ranks) -> None:
    """Rank 0 has measured that oneDNN's is the faster one, rank 1 that PyTorch's is."""
    pytest.importorskip("tj_onednn")
    (first, mine), (second, theirs) = ranks.run(FILE, "measured")
    assert first == second, "one kernel on both"
    assert (mine, theirs) == (True, False), "what they would have chosen"


def test_a_kernel_that_is_wrong_here_is_not_run(ranks: Ranks) -> None:
    pytest.importorskip("tj_onednn")
    assert ranks.run(FILE, "wrong_on_one") == [None, "oneDNN is wrong by 1 here"]


def test_finished_programs_are_found_by_the_folder_whose_times_decide(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Ranks with folders of their own have one key for a program; alone each has another."""
    pytest.importorskip("tj_onednn")
    first, second = ranks.run(FILE, "fingerprints", str(tmp_path))
    assert first == second
    ids = {path.read_text() for path in tmp_path.glob("*/onednn/id.json")}
    assert len(ids) == 2
    together, again = first
    assert together == again
    assert sum(repr(text) in together for text in ids) == 1


@pytest.mark.slow
def test_programs_with_collectives_are_kept(ranks: Ranks, tmp_path: Path) -> None:
    """One of both ranks compiles; in the second round none does."""
    rounds = [ranks.run(FILE, "kept", str(tmp_path)) for _ in range(2)]
    results = [result for found in rounds for result, *_ in found]
    assert results == [results[0]] * 4
    counts = [[tuple(count) for _, *count in found] for found in rounds]
    assert [sum(column) for column in zip(*counts[0], strict=True)] == [2, 2]
    assert counts[1] == [(0, 2), (0, 2)]
