"""Minimum cut of a flow network with whole-number capacities: Dinic's algorithm.

Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
estimation", 1970.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

__all__ = ["INFINITE", "Network"]

INFINITE = 1 << 62
"""A capacity that no cut crosses."""


class Network:
    """A directed network; nodes are any hashable things and appear when first mentioned."""

    def __init__(self) -> None:
        self._index: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # per node, its edges
        self._head: list[int] = []  # per edge, the node it leads to; edge ^ 1 leads back
        self._left: list[int] = []  # per edge, what may still flow

    def edge(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        """An edge from ``tail`` to ``head``; several between two nodes add up."""
        a, b = self._node(tail), self._node(head)
        for node, to, left in ((a, b, capacity), (b, a, 0)):
            self._edges[node].append(len(self._head))
            self._head.append(to)
            self._left.append(left)

    def _node(self, name: Hashable) -> int:
        found = self._index.setdefault(name, len(self._edges))
        if found == len(self._edges):
            self._edges.append([])
        return found

    def source_side(self, source: Hashable, sink: Hashable) -> set[Hashable] | None:
        """The nodes on the source's side of a minimum cut; None if every cut is infinite.

        Of several minimum cuts, the one nearest to the sink.
        """
        s, t = self._node(source), self._node(sink)
        total = 0
        while (levels := self._levels(s))[t] >= 0:
            total += self._blocking_flow(s, t, levels)
            if total >= INFINITE:
                return None
        beyond = self._reaching(t)
        return {name for name, node in self._index.items() if not beyond[node]}

    def _reaching(self, t: int) -> list[bool]:
        """Which nodes the sink can still be reached from."""
        found = [False] * len(self._edges)
        found[t] = True
        queue = deque([t])
        while queue:
            for edge in self._edges[queue.popleft()]:
                tail = self._head[edge]
                if self._left[edge ^ 1] and not found[tail]:
                    found[tail] = True
                    queue.append(tail)
        return found

    def _levels(self, s: int) -> list[int]:
        """Distances from the source over edges that have something left; -1 beyond reach."""
        levels = [-1] * len(self._edges)
        levels[s] = 0
        queue = deque([s])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                to = self._head[edge]
                if self._left[edge] and levels[to] < 0:
                    levels[to] = levels[node] + 1
                    queue.append(to)
        return levels

    def _blocking_flow(self, s: int, t: int, levels: list[int]) -> int:
        """Fill paths of rising levels until there are none; what flowed."""
        tried = [0] * len(self._edges)
        path: list[int] = []
        node, flowed = s, 0
        while True:
            if node == t:
                amount = min(self._left[e] for e in path)
                flowed += amount
                if flowed >= INFINITE:
                    return flowed
                for e in path:
                    self._left[e] -= amount
                    self._left[e ^ 1] += amount
                path, node = [], s
                continue
            edge = self._next(node, tried, levels)
            if edge is not None:
                path.append(edge)
                node = self._head[edge]
            elif path:
                node = self._head[path.pop() ^ 1]
                tried[node] += 1
            else:
                return flowed

    def _next(self, node: int, tried: list[int], levels: list[int]) -> int | None:
        """The first edge of ``node`` that goes one level on; those before it are done with."""
        edges = self._edges[node]
        while tried[node] < len(edges):
            edge = edges[tried[node]]
            if self._left[edge] and levels[self._head[edge]] == levels[node] + 1:
                return edge
            tried[node] += 1
        return None
