"""Kinds of vectors: Inductor tries one after the other, until one works."""

from __future__ import annotations

import pytest
from tj_inductor.adapter.vectors import Vectors


class Kind:
    """A kind of vectors that counts how often it is tried."""

    def __init__(self, works: bool) -> None:
        self.works = works
        self.tried = 0

    def __bool__(self) -> bool:
        self.tried += 1
        return self.works


def test_no_kind_is_tried_that_is_not_asked_for() -> None:
    kinds = [Kind(False), Kind(True), Kind(True)]
    found = Vectors(kinds)
    assert found
    assert found[0] is kinds[1]
    assert next(iter(found)) is kinds[1]
    assert kinds[2].tried == 0


def test_they_are_a_sequence_of_those_that_work() -> None:
    kinds = [Kind(True), Kind(False), Kind(True)]
    found = Vectors(kinds)
    assert [*found] == [kinds[0], kinds[2]]
    assert (len(found), found[1], found[-1], found[:1]) == (2, kinds[2], kinds[2], [kinds[0]])
    assert kinds[1] not in found
    with pytest.raises(IndexError):
        found[2]


def test_none_may_work() -> None:
    found = Vectors([Kind(False)])
    assert not found
    assert [*found] == []
    with pytest.raises(IndexError):
        found[0]
