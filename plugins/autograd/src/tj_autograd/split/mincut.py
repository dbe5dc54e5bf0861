"""Minimum cut of a flow network with whole-number capacities, by networkx."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TypeAlias

__all__ = ["INFINITE", "Network", "Solved"]

INFINITE = 1 << 62
"""Capacity of an edge that must not be cut."""

Edges: TypeAlias = Mapping[tuple[Hashable, Hashable], int]

Side: TypeAlias = set[Hashable] | None

Solved: TypeAlias = dict[tuple[tuple[int, int, int], ...], frozenset[int] | None]
"""Cache of connected parts: the nodes of each on the source's side.

Nodes are numbered in the order of a part's edges, so that equal layers of a model are one entry.
"""


class Network:
    """Directed flow network; nodes are hashable values and appear when first mentioned.

    Parts that only the source and the sink connect are cut separately. ``solved`` caches parts of
    other networks with the same source and sink.
    """

    def __init__(self, solved: Solved | None = None) -> None:
        self._capacities: dict[tuple[Hashable, Hashable], int] = {}
        self._solved: Solved = {} if solved is None else solved

    def edge(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        """Add an edge from ``tail`` to ``head``; several between two nodes add up."""
        self._capacities[tail, head] = self._capacities.get((tail, head), 0) + capacity

    def source_side(self, source: Hashable, sink: Hashable) -> Side:
        """Nodes on the source's side of a minimum cut; None if every cut is infinite.

        Of several minimum cuts, the one nearest to the sink.
        """
        found: set[Hashable] = {source}
        for part in _parts(self._capacities, source, sink):
            numbers = {source: 0, sink: 1}
            for node in chain.from_iterable(part):
                numbers.setdefault(node, len(numbers))
            key = tuple((numbers[t], numbers[h], capacity) for (t, h), capacity in part.items())
            if key not in self._solved:
                side = _source_side(part, source, sink)
                self._solved[key] = None if side is None else frozenset(numbers[n] for n in side)
            chosen = self._solved[key]
            if chosen is None:
                return None
            found.update(node for node, number in numbers.items() if number in chosen)
        return found


def _parts(edges: Edges, source: Hashable, sink: Hashable) -> Iterator[Edges]:
    """Yield the edges of each part that is connected without ``source`` and ``sink``."""
    parent: dict[Hashable, Hashable] = {}

    def root(node: Hashable) -> Hashable:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    ends = (source, sink)
    for tail, head in edges:
        if tail not in ends and head not in ends:
            parent[root(tail)] = root(head)
    parts: dict[Hashable, dict[tuple[Hashable, Hashable], int]] = {}
    for (tail, head), capacity in edges.items():
        node = head if tail in ends else tail
        parts.setdefault(None if node in ends else root(node), {})[tail, head] = capacity
    return iter(parts.values())


def _source_side(edges: Edges, source: Hashable, sink: Hashable) -> Side:
    nodes = {node for pair in edges for node in pair} - {source, sink}
    if len(nodes) == 1:
        node = nodes.pop()
        before, after = edges.get((source, node), 0), edges.get((node, sink), 0)
        if min(before, after) >= INFINITE:
            return None
        return {source, node} if after <= before else {source}
    return _by_networkx(edges.items(), source, sink)


def _by_networkx(
    edges: Iterable[tuple[tuple[Hashable, Hashable], int]], source: Hashable, sink: Hashable
) -> Side:
    import networkx  # takes a while, which programs without gradients need not wait for
    from networkx.algorithms.flow import boykov_kolmogorov  # fastest of all on such networks

    graph = networkx.DiGraph()
    graph.add_edges_from(
        # To networkx, an edge without a capacity has an infinite one.
        (tail, head, {"capacity": capacity} if capacity < INFINITE else {})
        for (tail, head), capacity in edges
    )
    graph.add_nodes_from((source, sink))
    try:
        _, (side, _) = networkx.minimum_cut(graph, source, sink, flow_func=boykov_kolmogorov)
    except networkx.NetworkXUnbounded:
        return None
    found: set[Hashable] = side
    return found
