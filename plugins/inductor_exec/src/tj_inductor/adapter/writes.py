"""Writes of regions: to their arguments, and in place of values that nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tj_core.extend import strides_overlap

from tj_inductor.adapter.calls import extern_call, laid_out_call, new_value_call
from tj_inductor.adapter.copies import copied, value_of
from tj_inductor.adapter.features import need
from tj_inductor.adapter.names import READS, STRIDES
from tj_inductor.adapter.replacing import Replacement
from tj_inductor.formulas import existing

__all__ = ["WRITES", "cloned", "known_memory", "read_before", "write"]


def write(graph: torch.fx.GraphModule, output: torch.fx.Node, written: Mapping[int, int]) -> None:
    """Let ``graph`` copy outputs to inputs, and return these instead, as Inductor knows it.

    Where nobody needs the old value any more, it computes the new one in place.
    """
    inputs = graph.graph.find_nodes(op="placeholder")
    found: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    targets = {inputs[place] for place in written.values()}
    for i, place in written.items():
        # Inductor removes `a = p.clone()` in `p.copy_(g); g.copy_(a)`, up to 2.15.
        old = value_of(copied(found[i]))
        if old in targets and old is not inputs[place]:
            with graph.graph.inserting_before(output):
                found[i] = cloned(found[i])
    for i, place in written.items():
        with graph.graph.inserting_before(output):
            copy = graph.graph.call_function(
                torch.ops.aten.copy_.default, (inputs[place], found[i])
            )
        # Inductor reads the metadata of each node off `meta["val"]`, which `make_fx` alone sets.
        copy.meta["val"] = inputs[place].meta["val"]
        found[i] = inputs[place]
    output.args = (tuple(found),)


PUTS = (torch.ops.aten.index_put.default, *existing("_unsafe_index_put.default"))
"""Operators that write at indices, which Inductor computes meanwhile."""

WRITES = (
    *PUTS,
    torch.ops.aten.slice_scatter.default,
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
    torch.ops.aten.as_strided_scatter.default,
    torch.ops.aten.copy_.default,
)
"""Operators that Inductor lets write to their first argument where nobody needs its old value."""


STRIDED = torch.ops.aten.as_strided_scatter.default
"""An operator that Inductor may not let write in place (2.13 to 2.15).

It writes in the order of the strides given. In one loop with it, Inductor read the old value where
the program reads the new one, in the order that the memory has: gradients of ``x.as_strided(...)``
that was written twice were wrong.
"""


def read_before(graph: torch.fx.GraphModule) -> None:
    """Copy what an operator of `WRITES` reads of its first argument, before it writes there.

    Copy the first argument itself if its elements share memory (`_separate`).

    Inductor looks for later readers of the old value, not for those among the other arguments
    (`can_inplace` in torch/_inductor/fx_passes/reinplace.py, up to 2.15), and has removed copies
    that programs make: ``v[1:] = v[:-1].clone()`` would read what has just been written. It may
    compute an argument in the loop that writes, too: that of ``d.mul_(d.flip(0))``, where ``d`` is
    a diagonal.
    """
    for node in graph.graph.nodes:
        if node.target not in WRITES:
            continue
        _separate(node)
        if node.target is STRIDED:
            need([READS])
            node.target = new_value_call(node.target)
            continue
        written = copied(node.args[0])
        if _is_cheap_anew(node) and _is_read_late(node.args[1], node):
            need([READS])
            node.target = new_value_call(node.target)
            continue
        with graph.graph.inserting_before(node):

            def before(x: torch.fx.Node, write: torch.fx.Node = node) -> torch.fx.Node:
                return cloned(x) if _is_read_late(x, write) else x

            def known(index: torch.fx.Node, written: torch.fx.Node = written) -> torch.fx.Node:
                # A mask becomes `where`, or a kernel of PyTorch's.
                mask = index.meta["val"].dtype in (torch.bool, torch.uint8)
                return cloned(index) if not mask and _depends(index, written) else index

            first, second, *others = node.args
            second = torch.fx.node.map_arg(second, known if node.target in PUTS else before)
            node.args = (first, second, *torch.fx.node.map_arg(others, before))


ANEW = (torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default)
"""Operators for whose whole results Inductor has a formula of each element."""

FEW = 4
"""Elements of a value, to those of the written part, up to which it is computed anew."""


def _is_cheap_anew(node: torch.fx.Node) -> bool:
    """Test for a write to a large part of a value: one loop for all, and no copies before it."""
    if node.target not in ANEW:
        return False
    old, new = (x.meta["val"].numel() for x in node.args[:2])  # type: ignore[union-attr]
    return isinstance(old, int) and isinstance(new, int) and old <= FEW * new


def _is_read_late(argument: torch.fx.Node, write: torch.fx.Node) -> bool:
    """Test if ``argument`` may be read, or computed, of what ``write`` has written by then."""
    written = copied(write.args[0])  # type: ignore[arg-type]  # of `WRITES`: a node
    if value_of(copied(argument)) == value_of(written):
        return True
    # A new value that is copied to an argument of the region is computed before.
    if write.target is torch.ops.aten.copy_.default:
        return False
    return _reads_elsewhere(argument, written, write)


def _separate(node: torch.fx.Node) -> None:
    """Copy the first argument of ``node``, a write, if its elements share memory.

    Up to 2.13 Inductor would write to all elements of ``x.expand(3, 4)`` that share memory, where
    the program asks for one; up to 2.15 to those of ``x.unfold(0, 2, 1)``. A copy has memory for
    each element. Arguments of regions are left out: a write to these is the program's own.
    """
    first = node.args[0]
    if node.target is torch.ops.aten.copy_.default or not isinstance(first, torch.fx.Node):
        return
    if _may_overlap(first.meta["val"]):
        with node.graph.inserting_before(node):
            node.args = (cloned(first), *node.args[1:])


def _may_overlap(value: torch.Tensor) -> bool:
    """Test if two elements of ``value`` may share memory; symbolic sizes count as their hints."""
    return strides_overlap(map(_hint, value.shape), map(_hint, value.stride()))


def _hint(size: int | torch.SymInt) -> int:
    """The value when traced of a size that may be a symbol; two where there is none yet."""
    if isinstance(size, int):
        return size
    # A size that is one for now may grow, and the region still be used.
    return max(2, int(size.node.hint)) if size.node.hint is not None else 2


def cloned(argument: torch.fx.Node) -> torch.fx.Node:
    """A copy that Inductor makes where it stands in the graph."""
    need([READS])
    made = argument.graph.call_function(extern_call(torch.ops.aten.clone.default), (argument,))
    made.meta["val"] = argument.meta["val"].clone()
    return made


VIEWS: dict[Any, Any] = {
    torch.ops.aten.slice_scatter.default: torch.ops.aten.slice.Tensor,
    torch.ops.aten.select_scatter.default: torch.ops.aten.select.int,
    torch.ops.aten.diagonal_scatter.default: torch.ops.aten.diagonal.default,
    torch.ops.aten.as_strided_scatter.default: torch.ops.aten.as_strided.default,
}
"""The view that each operator of `WRITES` writes to; it has the same further arguments."""


def _reads_elsewhere(node: torch.fx.Node, value: torch.fx.Node, write: torch.fx.Node) -> bool:
    """Test if an element of ``node`` may depend on an element of ``value`` at another place.

    ``write`` puts ``node`` in place of a part of ``value``; the old elements there may be read.
    """
    same, seen, waiting = value_of(value), set[torch.fx.Node](), [node]
    while waiting:
        last = waiting.pop()
        for x in last.all_input_nodes:
            if x in seen or not _depends(x, value):
                continue
            if not _is_pointwise(last):
                return True
            if _is_written_part(x, write):
                continue
            if value_of(copied(x)) == same:
                return True
            seen.add(x)
            waiting.append(x)
    return False


def _is_written_part(node: torch.fx.Node, write: torch.fx.Node) -> bool:
    """Test for the old value of the elements that ``write`` replaces."""
    place = (write.args[0], *write.args[2:]), write.kwargs
    return node.target is VIEWS.get(write.target) and (node.args, node.kwargs) == place


def _is_pointwise(node: torch.fx.Node) -> bool:
    operator = node.target
    return isinstance(operator, torch._ops.OpOverload) and torch.Tag.pointwise in operator.tags


def _depends(node: torch.fx.Node, value: torch.fx.Node) -> bool:
    """Test if ``node`` is computed from ``value`` or a copy of it."""
    same, seen, waiting = value_of(value), set[torch.fx.Node](), [node]
    while waiting:
        last = waiting.pop()
        if value_of(copied(last)) == same:
            return True
        waiting += [x for x in last.all_input_nodes if x not in seen]
        seen.update(last.all_input_nodes)
    return False


def _of_argument(own: Callable[..., Any]) -> Callable[..., Any]:
    """``get_node_storage``, which knows that a value may be laid out where its argument is.

    Inductor propagates metadata again while it looks for writes in place, up to 2.13 not for such a
    value, whose memory is another one's then.
    """

    def get_node_storage(node: torch.fx.Node) -> Any:
        while node.target is laid_out_call():
            node = node.args[0]  # type: ignore[assignment]
        return own(node)

    return get_node_storage


known_memory = Replacement(STRIDES, "reinplace", "get_node_storage", _of_argument).block
"""A block in which Inductor writes to no value that is laid out and needed in its own place."""
