"""Agreement of ranks, with a dictionary in the place of a store."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from tj_core import TjError
from tj_distributed.agreement import Agreement, RanksDisagreeError
from tj_distributed.options import Options
from tj_distributed.sequence import (
    Collective,
    digest,
    first_difference,
    from_text,
    to_text,
)

SUM = Collective("all_reduce", "0", "f32", 3, ("sum",), "a.py:1", ("x",))


class Members:
    """One rank's view of a shared dictionary."""

    def __init__(self, store: dict[str, str], rank: int, size: int = 2, timeout: float = 5) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout

    def has(self, key: str) -> bool:
        return key in self.store

    def get(self, key: str) -> str:
        return self.store[key]

    def set(self, key: str, text: str) -> None:
        self.store[key] = text

    def drop(self, key: str) -> None:
        del self.store[key]

    def waiting(self, text: str) -> None:
        self.store["waiting"] = text

    def in_eager(self) -> dict[int, str]:
        return {1: "f: graph break"}


def pair(size: int = 2, **options: object) -> list[Agreement]:
    store: dict[str, str] = {}
    chosen = Options(**options)  # type: ignore[arg-type]
    return [Agreement("0", Members(store, rank, size), chosen) for rank in range(size)]


def together(*calls: object) -> list[BaseException | None]:
    found: list[BaseException | None] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            calls[i]()  # type: ignore[operator]
        except TjError as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


CHANGES = [
    (SUM._replace(operation="all_gather"), False),
    (SUM._replace(dtype="f64"), False),
    (SUM._replace(elements=4), False),
    (SUM._replace(elements=None), True),
    (SUM._replace(details=("avg",)), False),
    (SUM._replace(group="7"), True),
    (SUM._replace(line="a.py:2"), True),
    (SUM._replace(inputs=("y",)), True),
    (SUM._replace(inputs=("y",), line="a.py:2"), False),
    (SUM._replace(inputs=(), line="a.py:2"), True),
    (SUM._replace(inputs=("x", "y"), line="a.py:2"), True),
]


@pytest.mark.parametrize(("other", "agrees"), CHANGES)
def test_collectives_that_agree(other: Collective, agrees: bool) -> None:
    assert SUM.agrees(other) is agrees
    assert other.agrees(SUM) is agrees
    one, two = pair()
    errors = together(lambda: one.begin((SUM,)), lambda: two.begin((other,)))
    assert [isinstance(e, RanksDisagreeError) for e in errors] == [not agrees] * 2


def test_text_of_a_sequence() -> None:
    assert from_text(to_text((SUM, SUM._replace(elements=None)))) == (
        SUM,
        SUM._replace(elements=None),
    )
    assert digest((SUM,)) == digest((SUM._replace(group="9"),))
    assert digest((SUM,)) != digest((SUM, SUM))


def test_first_difference() -> None:
    other = SUM._replace(dtype="f64")
    assert first_difference((SUM, SUM), (SUM, SUM)) is None
    assert first_difference((SUM, SUM), (SUM, other)) == 1
    assert first_difference((SUM, SUM), (SUM,)) == 1
    assert first_difference((), (SUM,)) == 0


def test_exchanged_in_one_line() -> None:
    """As in a helper that both calls go through; a rank may put zeros in a buffer's place."""
    other, third = SUM._replace(inputs=("y",)), SUM._replace(inputs=("zeros",))
    assert first_difference((SUM, other), (other, SUM)) == 0
    assert first_difference((third, SUM, other), (third, other, SUM)) == 1
    assert first_difference((SUM, other), (third, other)) is None


def test_four_ranks_of_which_one_is_another() -> None:
    ranks = pair(4)
    sequences = [(SUM,)] * 3 + [(SUM, SUM)]
    calls = [lambda r=r, s=s: r.begin(s) for r, s in zip(ranks, sequences, strict=True)]
    assert all(isinstance(error, RanksDisagreeError) for error in together(*calls))


def test_later_runs_do_not_wait() -> None:
    one, two = pair()
    assert together(lambda: one.begin((SUM,)), lambda: two.begin((SUM,))) == [None, None]
    for _ in range(200):
        one.begin((SUM,))  # the other rank is far behind
    for _ in range(200):
        two.begin((SUM,))
    one.check()
    one.close()
    two.close()


def test_a_run_is_settled_when_all_ranks_have_begun_it() -> None:
    """Only then a rank waits for a collective in its own thread."""
    one, two = pair()
    assert one.settled
    together(lambda: one.begin((SUM,)), lambda: two.begin((SUM,)))
    assert one.settled
    one.begin((SUM,))
    time.sleep(0.05)
    assert not one.settled
    two.begin((SUM,))
    deadline = time.monotonic() + 30
    while not (one.settled and two.settled):
        assert time.monotonic() < deadline, "the ranks' words were never compared"
        time.sleep(0.001)
    one.close()
    two.close()


def test_a_difference_is_found_while_no_one_waits() -> None:
    one, two = pair()
    both = (SUM,), (SUM, SUM)
    for found in both:
        assert together(lambda f=found: one.begin(f), lambda f=found: two.begin(f)) == [None, None]
    one.begin(both[0])
    two.begin(both[1])
    deadline = time.monotonic() + 5
    while not (one.failure and two.failure) and time.monotonic() < deadline:
        time.sleep(0.01)
    for rank in (one, two):
        with pytest.raises(RanksDisagreeError, match="no more"):
            rank.check()


def test_why_a_program_was_compiled_again_is_told() -> None:
    """Of the latest program with a sequence, on each rank that has compiled one again."""
    one, two = pair()
    two_sums = (SUM, SUM)
    assert together(lambda: one.begin((SUM,)), lambda: two.begin((SUM,))) == [None, None]
    for reason in ("x was 1, is 2", "x was 2, is 3"):
        calls = lambda: one.begin(two_sums), lambda r=reason: two.begin(two_sums, r)
        assert together(*calls) == [None, None]
    one.begin((SUM,))
    two.begin(two_sums, "x was 2, is 3")
    deadline = time.monotonic() + 5
    while not (one.failure and two.failure) and time.monotonic() < deadline:
        time.sleep(0.01)
    for rank in (one, two):
        assert rank.failure is not None
        assert "  rank 0:\n" in rank.failure
        assert "  rank 1, compiled again because x was 2, is 3:\n" in rank.failure


def test_old_words_leave_the_store() -> None:
    one, two = pair(agree="run")
    for _ in range(80):
        assert together(lambda: one.begin((SUM,)), lambda: two.begin((SUM,))) == [None, None]
    members = one.members
    assert isinstance(members, Members)
    assert sum(key.startswith("run/") for key in members.store) == 2 * 64


def test_a_rank_that_says_nothing() -> None:
    store: dict[str, str] = {}
    one = Agreement("0", Members(store, 0, timeout=0.2), Options(patience=0.05))
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("tj.distributed")
    logger.addHandler(handler)
    try:
        with pytest.raises(TjError, match=r"rank 0 waits for ranks \[1\]") as raised:
            one.begin((SUM,))
    finally:
        logger.removeHandler(handler)
    (record,) = records
    for text in (record.getMessage(), store["waiting"], str(raised.value)):
        assert "rank 0 waits for ranks [1]" in text
        assert f"rank 0, compiled: {SUM}" in text
        assert "rank 1 has fallen back to eager: f: graph break" in text


@pytest.mark.parametrize("options", [{"agree": "sometimes"}, {"patience": 0}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is"):
        Options(**options)  # type: ignore[arg-type]
