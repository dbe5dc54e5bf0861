"""Sums over rows that an index picks: loops whose vectors lie along the rows.

Inductor's vectors lie along the last loop that reads or writes anything contiguously. Where rows of
a table are summed, as the words of a text (``table[words].sum(1)``), that is the loop over the
index: the rows are then read element by element, which takes ten times as long as row by row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tj_inductor.adapter.names import ROWS
from tj_inductor.adapter.replacing import Replacement

__all__ = ["vectors_along_rows"]


def _along_rows(own: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """``TilingSelect._select_tiling_indices`` of Inductor, which chooses the loop of the vectors.

    It returns the place of the loop, or of two loops for a transposition, among all loops.
    """

    def select(self: Any, bodies: Sequence[Any], sizes: Sequence[Any], width: int) -> list[int]:
        chosen = own(self, bodies, sizes, width)
        # The loops of each body are the first of these, or all.
        outer, summed = max(sizes, key=lambda parts: len(parts[1]))
        loops = [*outer, *summed]
        # Of the other loops, all results are contiguous along one at most, which is chosen.
        if len(chosen) != 1 or chosen[0] < len(outer):
            return chosen
        rows = _rows(bodies, sizes)
        long = [i for i in rows if _fills(loops[i], width, loops[chosen[0]])]
        return chosen if not long or chosen[0] in rows else [max(long)]

    return select


def _fills(row: Any, width: int, other: Any) -> bool:
    """Check that vectors along rows of ``row`` elements are as full as along the ``other`` loop."""
    return bool(row.is_number) and (row >= width or bool(other.is_number and row >= other))


def _rows(bodies: Sequence[Any], sizes: Sequence[Any]) -> set[int]:
    """The places of loops along rows that an index picks, and along which nothing is strided."""
    from tj_inductor.adapter.names import extract_read_writes

    rows, strided = set(), set()
    for body, parts in zip(bodies, sizes, strict=True):
        found = extract_read_writes(body, *parts)
        for place in itertools.chain(found.reads, found.writes):
            for loop in place.ranges:
                stride = _stride(place.index, loop)
                number = int(loop.name[1:])
                if stride == 1 and place.is_indirect():
                    rows.add(number)
                elif stride not in (0, 1):
                    strided.add(number)
    return rows - strided


def _stride(index: Any, loop: Any) -> Any:
    """The number by which ``index`` grows in each step of ``loop``; None if it differs."""
    factor = index.coeff(loop)
    return None if (index - factor * loop).has(loop) else factor


vectors_along_rows = Replacement(ROWS, "TilingSelect", "_select_tiling_indices", _along_rows).block
"""A block in which vectors lie along rows that an index picks, in all threads."""
