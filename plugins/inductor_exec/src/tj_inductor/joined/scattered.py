"""Sums of gradients that each fill a part of a tensor of zeros.

The gradient of ``x`` in ``x[0]``, ``x[1]`` and so on is a sum of tensors as large as ``x``, each
with one place that is not zero: a stack of the gradients of the places. In ``x[0:2]``, ``x[2:4]``
and so on they stand one beside the other. Of rows that are looked up in a table for one step after
the other, it is the gradient of one look-up of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_inductor.joined.chains import chains
from tj_inductor.joined.facts import CAT, FEWEST, Facts, operation, outside

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol, Proxy, TensorProxy

    from tj_inductor.joined.editing import Edit

__all__ = ["join_scattered"]

PLACE, ROWS = "aten.select_backward.default", "aten.embedding_dense_backward.default"
SLICE = "aten.slice_backward.default"
STACK, ZEROS, NEW_ZEROS = "aten.stack.default", "aten.zeros_like.default", "aten.new_zeros.default"

MOST_APART = 4
"""Number of tensors of gradients of slices at most: each is as large as what the slices are of."""

NUMBER_OF_ARGUMENTS = {PLACE: 4, ROWS: 5, SLICE: 6}


def join_scattered(facts: Facts, edit: Edit) -> None:
    """Make sums of gradients of places, of slices, and of looked-up rows at once."""
    for call, summands in chains(facts):
        _Sum(facts, edit, call).join(summands)


@dataclass(frozen=True)
class _Term:
    """A summand that ``call`` makes: ``kind`` is equal for those that can be made at once.

    ``gradient`` is what fills the part at ``index``: a number, a range, or a tensor of rows.
    """

    value: Proxy
    call: BoundSymbol
    kind: tuple[Any, ...]
    gradient: TensorProxy
    index: Any

    @property
    def place(self) -> Any:
        """The place that is filled, which a stack has once; the value itself for others."""
        return self.index if self.kind[0] == PLACE else self.value.name


def _term(p: Proxy, facts: Facts, total: BoundSymbol) -> _Term | None:
    """The summand ``p`` of ``total`` if it may be made with others, else None."""
    call = facts.makers.get(p.name)
    if call is None or facts.reads[p.name] > 1 or call.context != total.context:
        return None
    inner = operation(call)
    name, args = inner.symbol.qualname, inner.args
    if inner.kwargs or len(args) != NUMBER_OF_ARGUMENTS.get(name):
        return None
    gradient = outside(call, args[0])
    if name == SLICE:
        return _slice(p, call, gradient, args[1:])
    if name == PLACE:
        sizes, dim, index = args[1:]
        if not all(isinstance(n, int) for n in (*sizes, dim, index)):
            return None
        return _Term(p, call, (name, *sizes, dim % len(sizes)), gradient, index % sizes[dim])
    rows = outside(call, args[1])
    kind = name, gradient.shape, rows.shape, *args[2:]
    by_frequency = args[4]
    return None if by_frequency else _Term(p, call, kind, gradient, rows)


def _slice(p: Proxy, call: BoundSymbol, gradient: TensorProxy, args: Sequence[Any]) -> _Term | None:
    """The gradient of a slice of neighbouring places; None for another, and for an empty one."""
    sizes, dim, start, end, step = args
    if step != 1 or not all(isinstance(n, int) for n in (*sizes, dim, start, end)):
        return None
    dim %= len(sizes)
    places = range(*slice(start, end).indices(sizes[dim]))
    if not places or gradient.shape[dim] != len(places):
        return None
    return _Term(p, call, (SLICE, *sizes, dim), gradient, places)


def _apart(terms: Sequence[_Term]) -> list[list[_Term]]:
    """``terms`` in groups whose slices do not overlap, in order; none if these are too many."""
    groups: list[list[_Term]] = []
    for term in sorted(terms, key=lambda term: term.index.start):
        free = (g for g in groups if g[-1].index.stop <= term.index.start)
        group = next(free, None)
        if group is None:
            groups.append(group := [])
        group.append(term)
    return groups if len(groups) <= MOST_APART else []


@dataclass(frozen=True)
class _Sum:
    """The sum that ``call`` ends."""

    facts: Facts
    edit: Edit
    call: BoundSymbol

    def join(self, summands: Sequence[Proxy]) -> None:
        """Replace the sum if some of ``summands`` can be made at once."""
        kinds: dict[Any, dict[Any, _Term]] = defaultdict(dict)
        for p in summands:
            term = _term(p, self.facts, self.call)
            if term is not None:
                # Of several that fill one place, one.
                kinds[term.kind].setdefault(term.place, term)
        groups: list[list[_Term]] = []
        for kind, found in kinds.items():
            terms = [*found.values()]
            groups += _apart(terms) if kind[0] == SLICE else [terms]
        joined = [terms for terms in groups if len(terms) >= FEWEST]
        if joined:
            inside = {term.value.name for terms in joined for term in terms}
            others = [p for p in summands if p.name not in inside]
            place = self.facts.place(self.call.flat_outs[0])
            self.edit.total(self.call, place, [*map(self.made, joined), *others])

    def made(self, terms: Sequence[_Term]) -> TensorProxy:
        """The sum of ``terms``."""
        place, like = self.facts.place(self.call.flat_outs[0]), terms[0].call
        if terms[0].kind[0] == ROWS:
            gradients, rows = (
                self.edit.put(place, like, STACK, values, alone=True)
                for values in ([t.gradient for t in terms], [t.index for t in terms])
            )
            return self.edit.put(place, like, ROWS, gradients, rows, *terms[0].kind[3:])
        _, *sizes, dim = terms[0].kind
        if terms[0].kind[0] == SLICE:
            return self.beside(place, terms, sizes, dim)
        filled = {term.index: term.gradient for term in terms}
        if len(filled) < sizes[dim]:
            zeros = self.edit.put(place, like, ZEROS, terms[0].gradient)
            filled = {i: filled.get(i, zeros) for i in range(sizes[dim])}
        values = [filled[i] for i in range(sizes[dim])]
        return self.edit.put(place, like, STACK, values, dim, alone=True)

    def beside(
        self, place: int, terms: Sequence[_Term], sizes: Sequence[int], dim: int
    ) -> TensorProxy:
        """The gradients of ``terms`` along ``dim``, with zeros between those that are apart."""
        like, parts, end = terms[0].call, [], 0

        def fill(until: int) -> None:
            if end < until:
                shape = [*sizes[:dim], until - end, *sizes[dim + 1 :]]
                parts.append(self.edit.put(place, like, NEW_ZEROS, terms[0].gradient, shape))

        for term in terms:
            fill(term.index.start)
            parts.append(term.gradient)
            end = term.index.stop
        fill(sizes[dim])
        return self.edit.put(place, like, CAT, parts, dim, alone=True)
