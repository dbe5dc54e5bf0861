"""Sums of products, such as the gradient of a weight that each step of a loop reads.

``a0 @ b0 + a1 @ b1 + ...`` is ``[a0 a1 ...] @ [b0; b1; ...]``: a product that writes its result
once, not with each step. The terms are added in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_core.extend import BoundSymbol, Proxy, TensorProxy

from tj_inductor.joined.chains import chains
from tj_inductor.joined.facts import (
    CAT,
    FEWEST,
    MM,
    MOST_ROWS,
    ROWS,
    TRANSPOSE,
    Facts,
    is_factor,
    is_plain,
)

if TYPE_CHECKING:
    from tj_inductor.joined.editing import Edit

__all__ = ["join_sums"]


@dataclass(frozen=True, slots=True)
class _Term:
    """A summand: ``value``, and ``product`` if it is a product of few rows that nobody else reads.

    The rows are those of the right factor.
    """

    value: Proxy
    product: BoundSymbol | None = None

    @property
    def rows(self) -> int:
        assert self.product is not None
        rows: int = self.product.args[1].shape[0]
        return rows

    def place(self, facts: Facts) -> int:
        assert self.product is not None
        return facts.place(self.product.flat_outs[0])


def join_sums(facts: Facts, edit: Edit) -> None:
    """Make products at once whose sum is taken."""
    for call, summands in chains(facts):
        if not is_plain(call.flat_outs[0]):
            continue
        terms = [_term(p, call, facts) for p in summands]
        joined = list(_parts([t for t in terms if t.product is not None], facts))
        if joined and not any(_repeats(part, facts) for part in joined):
            _Sum(facts, edit, call).put(joined, terms)


def _term(p: Proxy, total: BoundSymbol, facts: Facts) -> _Term:
    """The summand ``p`` of ``total``."""
    value, transposed = p, False
    while facts.reads[value.name] == 1 and (call := facts.makers.get(value.name)) is not None:
        if call.symbol.qualname == TRANSPOSE:
            value, transposed = call.flat_args[0], not transposed
            continue
        fits = call.symbol.qualname == MM and is_factor(call) and call.context == total.context
        if not fits or transposed or call.args[1].shape[0] > ROWS:
            break
        return _Term(p, call)
    return _Term(p)


def _parts(terms: Sequence[_Term], facts: Facts) -> Iterator[list[_Term]]:
    """``terms`` in parts of at most `MOST_ROWS` rows, in the order in which they are made."""
    part: list[_Term] = []
    rows = 0
    for term in sorted(terms, key=lambda term: term.place(facts)):
        if rows + term.rows > MOST_ROWS:
            if len(part) >= FEWEST:
                yield part
            part, rows = [], 0
        part.append(term)
        rows += term.rows
    if len(part) >= FEWEST:
        yield part


def _repeats(part: Sequence[_Term], facts: Facts) -> bool:
    """Check for a factor of several products, which is not copied for each of them."""
    for i in range(2):
        factors = {facts.operand(t.product.args[i]) for t in part if t.product is not None}
        if len(factors) < len(part):
            return True
    return False


@dataclass(frozen=True)
class _Sum:
    """The sum that ``call`` ends, on its way to joined products."""

    facts: Facts
    edit: Edit
    call: BoundSymbol

    def put(self, parts: Sequence[Sequence[_Term]], terms: Sequence[_Term]) -> None:
        """Replace the sum: ``parts`` are those of its ``terms`` that are joined."""
        inside = {id(term) for part in parts for term in part}
        others = [term.value for term in terms if id(term) not in inside]
        place = self.facts.place(self.call.flat_outs[0])
        self.edit.total(self.call, place, [*map(self.product, parts), *others])

    def product(self, part: Sequence[_Term]) -> Proxy:
        """The product of ``part``, after its last term."""
        products = self.ordered([term.product for term in part if term.product is not None])
        self.edit.joined |= {call.label for call in products}
        place = max(self.facts.place(call.flat_outs[0]) for call in products) + 1
        like = products[0]
        left = self.left(place, like, [call.args[0] for call in products])
        right = self.edit.below(place, like, [call.args[1] for call in products], self.facts)
        return self.edit.put(place, like, MM, left, right)

    def ordered(self, products: list[BoundSymbol]) -> list[BoundSymbol]:
        """``products`` in the order of the places that their factors are of one value, if so."""
        for factors in (
            [call.args[1] for call in products],
            [self.turned(call.args[0]) or call.args[0] for call in products],
        ):
            rows = self.facts.rows(factors)
            if rows is not None:
                order = sorted(range(len(products)), key=lambda i: rows[factors[i].name].place)
                return [products[i] for i in order]
        return products

    def turned(self, p: TensorProxy) -> TensorProxy | None:
        """The value that ``p`` is the transposition of, or None."""
        maker = self.facts.makers.get(p.name)
        if maker is None or maker.symbol.qualname != TRANSPOSE:
            return None
        (value,) = maker.flat_args
        assert isinstance(value, TensorProxy)
        return value

    def left(self, place: int, like: BoundSymbol, values: Sequence[TensorProxy]) -> TensorProxy:
        """``values`` side by side; the rows of what they are transpositions of, where they are."""
        turned = [value for p in values if (value := self.turned(p)) is not None]
        if len(turned) < len(values):
            return self.edit.put(place, like, CAT, list(values), 1, alone=True)
        rows = self.edit.below(place, like, turned, self.facts)
        return self.edit.put(place, like, TRANSPOSE, rows)
