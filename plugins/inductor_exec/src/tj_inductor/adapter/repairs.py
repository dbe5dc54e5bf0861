"""Changes of a region's graph, where Inductor would compute something else, or fail."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tj_inductor.adapter.copies import copied, value_of
from tj_inductor.adapter.writes import WRITES, cloned

__all__ = ["by_twos", "copy_joined"]

EXTREMES = {"_nary_sym_max": torch.sym_max, "_nary_sym_min": torch.sym_min}
"""Functions of `make_fx` that take any number of sizes, by name: 2.10 has none."""


def by_twos(graph: torch.fx.Graph) -> None:
    """Compute the largest and the smallest of several sizes in steps of two.

    `make_fx` puts a function in the graph for which Inductor has no lowering.
    """
    for node in [*graph.nodes]:
        operator = EXTREMES.get(getattr(node.target, "__name__", ""))
        if operator is None:
            continue
        with graph.inserting_before(node):
            made = functools.reduce(functools.partial(_step, graph, operator), node.args)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _step(graph: torch.fx.Graph, operator: Any, a: Any, b: Any) -> torch.fx.Node:
    made = graph.call_function(operator, (a, b))
    made.meta["val"] = operator(*(getattr(x, "meta", {"val": x})["val"] for x in (a, b)))
    return made


def copy_joined(graph: torch.fx.GraphModule) -> None:
    """Let `cat` read copies of values that the graph changes later.

    Inductor computes an argument of `cat` where it stands in the result, and lets a later operator
    of `WRITES` write there: the result changes, too (up to 2.14). Arguments of the region
    are copied there.
    """
    later: set[Any] = set()
    for node in reversed(graph.graph.nodes):
        if node.target in WRITES:
            written = copied(node.args[0])
            if written.op != "placeholder":
                later.add(value_of(written))
        elif node.target is torch.ops.aten.cat.default:
            with graph.graph.inserting_before(node):
                parts = [cloned(x) if value_of(copied(x)) in later else x for x in node.args[0]]
            node.args = (parts, *node.args[1:])
