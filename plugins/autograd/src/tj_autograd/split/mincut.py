"""Minimum cut of a flow network with whole-number capacities, by networkx."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["INFINITE", "Network"]

INFINITE = 1 << 62
"""A capacity that no cut crosses."""


class Network:
    """A directed network; nodes are any hashable things and appear when first mentioned."""

    def __init__(self) -> None:
        self._capacities: dict[tuple[Hashable, Hashable], int] = {}

    def edge(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        """An edge from ``tail`` to ``head``; several between two nodes add up."""
        self._capacities[tail, head] = self._capacities.get((tail, head), 0) + capacity

    def source_side(self, source: Hashable, sink: Hashable) -> set[Hashable] | None:
        """The nodes on the source's side of a minimum cut; None if every cut is infinite.

        Of several minimum cuts, the one nearest to the sink.
        """
        import networkx  # takes a while, which programs without gradients need not wait for
        from networkx.algorithms.flow import boykov_kolmogorov  # fastest of all on such networks

        graph = networkx.DiGraph()
        graph.add_edges_from(
            # To networkx, an edge without a capacity has an infinite one.
            (tail, head, {"capacity": capacity} if capacity < INFINITE else {})
            for (tail, head), capacity in self._capacities.items()
        )
        graph.add_nodes_from((source, sink))
        try:
            _, (side, _) = networkx.minimum_cut(graph, source, sink, flow_func=boykov_kolmogorov)
        except networkx.NetworkXUnbounded:
            return None
        found: set[Hashable] = side
        return found
