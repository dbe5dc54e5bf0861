"""Minimum cut of a flow network with whole-number capacities, by networkx."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any

__all__ = ["INFINITE", "Network"]

INFINITE = 1 << 62
"""A capacity that no cut crosses."""


class Network:
    """A directed network; nodes are any hashable things and appear when first mentioned."""

    @cached_property
    def _graph(self) -> Any:
        import networkx  # takes a while, which programs without gradients need not wait for

        return networkx.DiGraph()

    def edge(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        """An edge from ``tail`` to ``head``; several between two nodes add up."""
        known = self._graph.get_edge_data(tail, head, {"capacity": 0})
        total = known.get("capacity", INFINITE) + capacity
        self._graph.add_edge(tail, head)
        if total < INFINITE:
            self._graph[tail][head]["capacity"] = total
        else:  # to networkx, an edge without a capacity has an infinite one
            self._graph[tail][head].pop("capacity", None)

    def source_side(self, source: Hashable, sink: Hashable) -> set[Hashable] | None:
        """The nodes on the source's side of a minimum cut; None if every cut is infinite.

        Of several minimum cuts, the one nearest to the sink.
        """
        import networkx
        from networkx.algorithms.flow import boykov_kolmogorov  # fastest of all on such networks

        self._graph.add_nodes_from((source, sink))
        try:
            _, (side, _) = networkx.minimum_cut(
                self._graph, source, sink, flow_func=boykov_kolmogorov
            )
        except networkx.NetworkXUnbounded:
            return None
        found: set[Hashable] = side
        return found
