"""The order in which autograd's engine takes the gradients of one node.

The engine has a queue of nodes that are ready, a heap. All nodes that accumulate gradients of
leaves have the same priority, and those of one node leave the queue in an order of the heap's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["arrange", "taken"]

T = TypeVar("T")


def arrange(values: Sequence[T], others: bool) -> list[T]:
    """Arrange ``values``, leaves, so that a node of them hands its gradients on in their order.

    ``others`` is true if the node has other inputs after them, which count as one.
    """
    found = [*values]
    for value, place in zip(values, taken(len(values), others), strict=True):
        found[place] = value
    return found


@functools.cache
def taken(count: int, others: bool) -> tuple[int, ...]:
    """Places of ``count`` leaves in the order in which their gradients are taken.

    ``others``: see `arrange`. Nothing else is in the queue.

    Source: ``std::priority_queue`` with `CompareNodeTaskTime` (torch/csrc/autograd/engine.h), as
    libstdc++ implements it (`__adjust_heap` and `__push_heap` in bits/stl_heap.h). Other libraries
    may take equal elements in another order.
    """
    heap = [*range(count), *([count] if others else [])]
    found = []
    while heap:
        if heap[0] < count:
            found.append(heap[0])
        last = heap.pop()
        if heap:
            _replace_first(heap, last, count)
    return tuple(found)


def _replace_first(heap: list[int], value: int, count: int) -> None:
    """Put ``value`` into ``heap`` in the place of its first element, as ``std::pop_heap`` does.

    Elements from ``count`` on have a lower priority than all others.
    """
    size, hole = len(heap), 0
    # The hole moves down to the end of the heap, then the value up from there.
    while (right := 2 * hole + 2) <= size:
        child = right - 1 if right == size or heap[right] >= count > heap[right - 1] else right
        heap[hole], hole = heap[child], child
    while hole > 0 and heap[parent := (hole - 1) // 2] >= count > value:
        heap[hole], hole = heap[parent], parent
    heap[hole] = value
