"""Ranks that run different collectives: an error on all of them, with both sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
from tj_distributed.testing import TIMEOUT, Ranks
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

FILE = str(Path(__file__).with_name("disagreeing.py"))


@pytest.mark.parametrize("name", ["exchanged", "one_more"])
def test_all_ranks_raise(name: str, ranks: Ranks) -> None:
    for found in ranks.run(FILE, name):
        if name == "one_more":
            before, found = found
            assert before == [before[0]] * 3
        kind, text, seconds = found
        assert kind == "RanksDisagreeError", text
        assert "ranks 0 and 1 run different collectives" in text
        assert text.count("all_reduce(") >= 3
        assert "disagreeing.py:" in text
        assert seconds < TIMEOUT, "an error, not a timeout; compilation included"
        again = "rank 1, compiled again because flag was False, is True:" in text
        assert again is (name == "one_more")
        assert "rank 0:" in text


@pytest.mark.parametrize("agree", ["compile", "run"])
def test_programs_that_were_compiled_before(agree: str, ranks: Ranks) -> None:
    for kind, text, _ in ranks.run(FILE, "known_programs", agree):
        assert kind == "RanksDisagreeError", text


def test_without_a_check_nothing_is_sent(ranks: Ranks) -> None:
    """Wrong sums, or a wait until a rank has left, as in eager."""
    for found in ranks.run(FILE, "known_programs", "off"):
        assert found[0] != "RanksDisagreeError"


@pytest.mark.parametrize("name", ["operands_of_one_line", "slow_compile"])
def test_no_error(name: str, ranks: Ranks) -> None:
    first, second = ranks.run(FILE, name)
    assert first == second
    assert not isinstance(first, tuple)


def test_symbols_on_one_rank_alone(ranks: Ranks) -> None:
    assert ranks.run(FILE, "lengths") == [[[4.0] * n for n in (4, 5, 6)]] * 2


def test_backward_is_compared_too(ranks: Ranks) -> None:
    for (eager, jitted), says in ranks.run(FILE, "gradients"):
        assert jitted == eager
        assert says in (True, None)


@pytest.mark.slow
def test_one_rank_falls_back_and_the_other_waits_for_its_word(ranks: Ranks) -> None:
    """Both end with the timeout of the group, and name each other."""
    compiled, eager = ranks.run(FILE, "one_in_eager", 3.0)
    assert compiled[0] == "TjError", compiled[1]
    assert "rank 0, compiled: all_reduce(3 x f32 of x, sum)" in compiled[1]
    assert "rank 1 has fallen back to eager: one_in_eager.<locals>.<lambda>" in compiled[1]
    assert eager[0] != "TjError"
    assert "rank 0 waits for ranks [1]" in eager[1]
    assert "runs in eager on this rank" in eager[1]
    assert max(compiled[2], eager[2]) < 30, "the timeout, and the time of a compilation"


def test_one_rank_runs_in_eager_what_both_have_compiled(ranks: Ranks) -> None:
    first, second = ranks.run(FILE, "one_in_eager_later")
    assert first == second == [first[0]] * 6
    assert isinstance(first[0], list)


@pytest.mark.slow
def test_a_rank_that_dies(mortal: Ranks) -> None:
    (kind, text, seconds), failure = mortal.run(FILE, "death")
    assert not mortal.alive
    assert failure.kind == "EOFError"
    assert kind == "RuntimeError"
    assert "what each rank has begun last" in text
    assert "rank 0: run 3: all_reduce(3 x f32 of x, sum)" in text
    assert "rank 1: run 2: all_reduce(3 x f32 of x, sum)" in text
    assert seconds < 20
