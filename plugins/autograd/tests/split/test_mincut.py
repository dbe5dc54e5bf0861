"""Minimum cuts, compared with an exhaustive search."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tj_autograd.split.mincut import INFINITE, Network

NODES = st.integers(0, 6)
EDGES = st.lists(st.tuples(NODES, NODES, st.sampled_from([0, 1, 2, 5, 9])), max_size=24)


def cost(edges: list[tuple[int, int, int]], side: set[int]) -> int:
    return sum(c for a, b, c in edges if a in side and b not in side)


@settings(max_examples=300, deadline=None)
@given(EDGES)
def test_no_cut_is_cheaper(edges: list[tuple[int, int, int]]) -> None:
    network = Network()
    for edge in edges:
        network.edge(*edge)
    side = network.source_side(0, 1)
    assert side is not None
    assert 1 not in side
    others = [2, 3, 4, 5, 6]
    every = [{0} | {n for i, n in enumerate(others) if mask >> i & 1} for mask in range(32)]
    assert cost(edges, side | {0}) == min(cost(edges, s) for s in every)


def test_of_equal_cuts_the_one_nearest_to_the_sink() -> None:
    network = Network()
    for edge in [("s", "a", 3), ("a", "b", 3), ("b", "t", 3)]:
        network.edge(*edge)
    assert network.source_side("s", "t") == {"s", "a", "b"}


def test_no_finite_cut() -> None:
    network = Network()
    network.edge("s", "a", INFINITE)
    network.edge("a", "t", INFINITE)
    assert network.source_side("s", "t") is None


def test_a_long_chain() -> None:
    network = Network()
    for i in range(3000):
        network.edge(i, i + 1, 5 if i != 1234 else 2)
    side = network.source_side(0, 3000)
    assert side is not None
    assert len(side) == 1235
