"""New calls beside the calls of a program, and the calls that they replace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    PassContext,
    PassRecord,
    Proxy,
    Tag,
    TensorProxy,
    Trace,
    TraceEditor,
)

from tj_inductor.joined.facts import ADD, CAT, Facts

__all__ = ["ALONE", "Edit", "tag"]

ALONE = "INDUCTOR_ALONE"
"""Tag of calls that stand in no region."""

VIEW = "aten.view.default"


def tag() -> Tag:
    """Make the tag of calls that stand in no region."""
    return Tag(ALONE, "the call stands in no region of Inductor", carriers=frozenset({"call"}))


@dataclass
class Edit:
    """Changes of ``trace``: calls to put before the call at an index, and calls in its place.

    ``joined`` are the labels of products without readers in the edited program, ``sums`` the
    values that stand for sums, by name.
    """

    trace: Trace
    context: PassContext
    before: dict[int, list[BoundSymbol]] = field(default_factory=lambda: defaultdict(list))
    instead: dict[int, list[BoundSymbol]] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    sums: dict[str, Proxy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.editor = TraceEditor(self.trace, self.context.tags)

    def call(self, like: BoundSymbol, symbol: str, *args: Any) -> BoundSymbol:
        """A new call with the context, source and tags of ``like``, of which it is a part."""
        context = self.context
        maker = CallEditor(like, self.editor.fresh, context.expand, context.tags, self.trace)
        made = maker.call(symbol, *args)
        return made.replace(tags=like.tags, parent=like.parent or like.label)

    def put(
        self, place: int, like: BoundSymbol, symbol: str, *args: Any, alone: bool = False
    ) -> TensorProxy:
        """The value of a new call before the call at ``place``; see `call`.

        With ``alone``, the call is in no region.
        """
        call = self.call(like, symbol, *args)
        if alone:
            call = call.replace(tags=call.tags.add(ALONE))
        self.before[place].append(call)
        (made,) = call.flat_outs
        assert isinstance(made, TensorProxy)
        return made

    def total(self, call: BoundSymbol, place: int, values: Sequence[Proxy]) -> None:
        """Replace ``call`` at ``place``, which ends a sum, by the sum of ``values``.

        Nothing happens if one of these is laid out otherwise; the new calls have no reader then.
        """
        (out,) = call.flat_outs
        if not all(p.same_meta(out) for p in values):
            return
        total, *more = values
        adds = []
        for p in more:
            adds.append(self.call(call, ADD, total, p))
            (total,) = adds[-1].flat_outs
        self.instead[place] = adds
        self.sums[out.name] = total

    def move(self, place: int, before: int) -> None:
        """Put the call at ``place`` before the call at index ``before``."""
        self.before[before].append(self.trace.calls[place])
        self.instead[place] = []

    def below(
        self, place: int, like: BoundSymbol, values: Sequence[Proxy], facts: Facts
    ) -> TensorProxy:
        """``values`` one below the other; a view where they are the places of one value in order.

        PyTorch copies them. A region with as many inputs takes long to compile, and is no faster.
        """
        rows = facts.rows(values)
        if rows is not None and [rows[p.name].place for p in values] == [*range(len(values))]:
            base = rows[values[0].name].base
            return self.put(place, like, VIEW, base, [-1, base.shape[-1]])
        return self.put(place, like, CAT, list(values), alone=True)

    def done(self) -> Trace:
        """The edited program."""
        for place, call in enumerate(self.trace.calls):
            kept = self.instead.get(place, [call])
            for made in (*self.before.get(place, ()), *kept):
                self.editor.append(self.editor.moved(made))
            if kept != [call]:
                self.editor.changed(call, self.context.name, self.context.plugin)
            for p in call.flat_outs:
                if p.name in self.sums:
                    self.editor.substitute(p, self.sums[p.name], call.source)
        return self.editor.done(PassRecord(self.context.name, self.context.plugin))
