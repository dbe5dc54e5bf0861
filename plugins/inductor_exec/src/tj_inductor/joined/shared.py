"""Products with one right operand, such as the weight that each step of a loop reads.

``a0 @ w``, ``a1 @ w`` and so on are the rows of ``[a0; a1; ...] @ w`` where no left operand depends
on another product. A step whose operand is known before the loop waits for no other step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.extend import BoundSymbol, Proxy, TensorProxy, contiguous_strides

from tj_inductor.joined.facts import FEWEST, MOST_ROWS, PRODUCTS, ROWS, Facts, is_factor

if TYPE_CHECKING:
    from tj_inductor.joined.editing import Edit

__all__ = ["join_shared"]

SPLIT, CLONE = "aten.split_with_sizes.default", "aten.clone.default"

FENCE = "FENCE"

MOST_MOVED = 16
"""Number of calls, at most, that are moved for one product."""


@dataclass
class _Group:
    """Products with one right operand, at ``places``; their ``rows``.

    From index ``ready`` on all operands are there; at ``first_read`` is the first reader.
    """

    ready: int
    first_read: int
    places: list[int] = field(default_factory=list)
    rows: int = 0

    def add(self, place: int, ready: int, rows: int, first_read: int) -> None:
        """Add the product at ``place``, whose left operand is there from index ``ready`` on."""
        self.places.append(place)
        self.ready = max(self.ready, ready)
        self.read(first_read)
        self.rows += rows

    def read(self, place: int) -> None:
        """Note that the call at ``place`` reads a product of the group."""
        self.first_read = min(self.first_read, place)


def join_shared(facts: Facts, edit: Edit) -> None:
    """Make products with one right operand at once."""
    for group in _Search(facts, edit).groups():
        _put(group, facts, edit)


@dataclass(frozen=True)
class _Search:
    """The search for products to join; ``made`` are the groups by name of what they make."""

    facts: Facts
    edit: Edit
    made: dict[str, _Group] = field(default_factory=dict)

    def groups(self) -> list[_Group]:
        """The groups of products, without those that are joined in another way."""
        open_: dict[Any, _Group] = {}
        found: list[_Group] = []
        for place, call in enumerate(self.facts.trace.calls):
            key = self.key(call)
            if key is None:
                continue
            rows = call.args[-2].shape[0]
            group = open_.get(key)
            if group is None or group.rows + rows > MOST_ROWS or not self.reaches(call, group):
                # What all products read is there at the first.
                group = open_[key] = _Group(place, len(self.facts.trace.calls))
                found.append(group)
            (out,) = call.flat_outs
            left = call.args[-2]
            group.add(place, self.ready(left), rows, self.facts.first_read(out))
            if left.name in self.made:
                self.made[left.name].read(group.ready - 1)
            self.made[out.name] = group
        return [group for group in found if len(group.places) >= FEWEST]

    def key(self, call: BoundSymbol) -> Any:
        """A value that is equal for products that may be joined; None for other calls."""
        if not is_factor(call) or call.label in self.edit.joined:
            return None
        *added, left, right = call.args
        (out,) = call.flat_outs
        assert isinstance(out, TensorProxy)
        if left.shape[0] > ROWS or out.strides != contiguous_strides(out.shape):
            return None
        return (
            call.symbol,
            call.context,
            self.facts.operand(right),
            *(self.facts.number(p.name) for p in added),
        )

    def ready(self, p: Proxy) -> int:
        """Index from which on ``p`` is there, also if the product that makes it is joined.

        New calls before one index have the order of their groups, which may not be this one.
        """
        ready = self.facts.place(p) + 1
        return max(ready, self.made[p.name].ready + 1) if p.name in self.made else ready

    def reaches(self, call: BoundSymbol, group: _Group) -> bool:
        """Decide if the left operand of ``call`` is there before ``group`` is read.

        Calls that make it are moved before the group's first product if there are few.
        """
        left = call.args[-2]
        if self.made.get(left.name) is group:
            return False
        if self.ready(left) <= group.first_read:
            return True
        before, waiting = group.places[0], [left]
        moved: set[int] = set()
        while waiting:
            p = waiting.pop()
            if self.facts.place(p) >= before and self.facts.place(p) not in moved:
                place = self.facts.place(p)
                if len(moved) == MOST_MOVED or not self.may_move(p):
                    return False
                moved.add(place)
                waiting += self.facts.trace.calls[place].flat_args
            elif p.name in self.made and self.made[p.name].ready >= before:
                return False
        for place in sorted(moved):
            for p in self.facts.trace.calls[place].flat_args:
                if p.name in self.made:
                    self.made[p.name].read(before - 1)
            self.edit.move(place, before)
            self.facts.move(place, before)
        return True

    def may_move(self, p: Proxy) -> bool:
        """Check that the call that makes ``p`` may run earlier.

        Products stay, since they may be of the group, and calls that are replaced or moved.
        """
        call = self.facts.makers[p.name]
        if call.symbol.qualname in PRODUCTS or FENCE in call.tags or call.subprograms:
            return False
        stays = p.name in self.facts.moved or self.facts.place(p) in self.edit.instead
        return not stays and call.effects.removable and not call.effects.copies_back


def _put(group: _Group, facts: Facts, edit: Edit) -> None:
    """Replace the products of ``group`` by rows of one product."""
    calls = [facts.trace.calls[place] for place in group.places]
    rows = facts.rows([call.args[-2] for call in calls])
    if rows is not None:
        calls.sort(key=lambda call: rows[call.args[-2].name].place)
    first = facts.trace.calls[group.places[0]]
    *added, _, right = first.args
    left = edit.below(group.ready, first, [call.args[-2] for call in calls], facts)
    made = edit.put(group.ready, first, first.symbol.qualname, *added, left, right)
    parts = edit.call(first, SPLIT, made, [call.args[-2].shape[0] for call in calls])
    outputs = list(parts.outputs)
    copies: list[BoundSymbol] = []
    for i, call in enumerate(calls):
        (out,) = call.flat_outs
        place = facts.place(out)
        edit.instead[place] = []
        if facts.escapes(out):
            # The caller gets memory of its own, as of a product.
            copy = edit.call(call, CLONE, outputs[i]).replace(outputs=call.outputs)
            if place < group.ready:
                copies.append(copy)
            else:
                edit.instead[place] = [copy]
        else:
            outputs[i] = out
    parts = parts.replace(outputs=type(parts.outputs)(outputs))
    edit.before[group.ready] += [parts, *copies]
