"""The trace editor: where every pass makes its trace.

A pass goes through the calls of a trace and says of each what becomes of it: it is kept, others are
put in its place, or it is dropped and its values are substituted. The editor keeps the names, the
tags that values inherit and the record of what was changed, in one way for all passes. Traces are
made nowhere else but where programs are captured and where text is parsed
(`tests/test_rooms.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tj_core.edit.bodies import with_args
from tj_core.edit.inlining import Inlined, inline
from tj_core.edit.tag_propagation import TagInheritance
from tj_core.ir.names import Namer
from tj_core.ir.proxy import Proxy
from tj_core.ir.stage import Stage
from tj_core.ir.substitution import substituted, substitution
from tj_core.ir.tags import TagRegistry, TagSet
from tj_core.ir.trace import Body, BoundSymbol, Change, Notation, PassRecord, Region, Trace
from tj_core.source import Source
from tj_core.text.language import EMPTY_LANGUAGE

__all__ = ["TraceEditor", "at_stage", "recorded", "timed"]


class TraceEditor:
    """Edits ``trace``, a program or a region's.

    ``calls`` are those of the edited program so far, ``values`` what values of the old one are
    there, by name, ``changes`` what `done` records. ``tags`` is needed where values are substituted
    that carry tags.
    """

    def __init__(self, trace: Trace, tags: TagRegistry | None = None) -> None:
        self.trace = trace
        self.tags = tags
        self.calls: list[BoundSymbol] = []
        self.values: dict[str, Any] = {}
        self.changes: list[Change] = []
        self.inheritance = TagInheritance(tags) if tags is not None else None

    @cached_property
    def fresh(self) -> Namer:
        """Gives names that are free in the program."""
        return self.trace.namer()

    def current(self, p: Proxy) -> Any:
        """What ``p`` is in the edited program: itself, another value, or a constant."""
        return substitution(self.values)(p)

    def moved(self, call: BoundSymbol) -> BoundSymbol:
        """``call`` over what its arguments are now; metadata is the caller's to keep."""
        return with_args(call, substitution(self.values)) if self.values else call

    def mapped(self, tree: Any) -> Any:
        """``tree`` with what its values are now."""
        return substituted(tree, self.values)

    def keep(self, *calls: BoundSymbol) -> None:
        """Append ``calls``, which are over values of the edited program."""
        self.calls += calls

    def insert(self, place: int, *calls: BoundSymbol) -> None:
        """Put ``calls`` before the call kept at ``place``."""
        self.calls[place:place] = calls

    def replace(self, place: int, *calls: BoundSymbol) -> None:
        """Put ``calls`` in the place of the call kept at ``place``; none drops it."""
        self.calls[place : place + 1] = calls

    def renamed(self, call: BoundSymbol) -> BoundSymbol:
        """``call`` with free names for the values that it defines, so that it can run again."""
        names = {p.name: p.replace(name=self.fresh(p.name)) for p in call.defined()}
        return call.map_proxies(substitution(names))

    def substitute(self, old: Proxy, new: Any, source: Source | None = None) -> None:
        """Let ``new`` stand for ``old`` in what follows; it inherits the tags of ``old``.

        :raises TagError: if they contradict what it inherits from others.
        """
        self.values[old.name] = new
        self.inherit(new, old.tags, source)

    def inherit(self, new: Any, tags: TagSet, source: Source | None = None) -> None:
        """Owe ``tags`` to ``new``, which may be defined before; a constant inherits nothing.

        :raises TagError: if they contradict what it inherits from others.
        """
        if self.inheritance is not None:
            self.inheritance.inherit(new, tags, source)

    def inlined(self, call: BoundSymbol) -> Inlined:
        """The body of ``call`` under names that are free here; nothing is kept yet.

        :raises TraceError: if it has none that can stand for it (`can_inline`).
        """
        assert self.tags is not None
        return inline(call, self.fresh, self.tags)

    def stands_for(self, call: BoundSymbol, start: int, values: Mapping[str, Any]) -> None:
        """The calls kept from ``start`` on stand for ``call``.

        ``values`` says which of its outputs are other values; they define the rest, under the old
        names.
        """
        made = {p.name: p for kept in self.calls[start:] for p in kept.flat_outs}
        for p in call.flat_outs:
            value = self.mapped(substituted(p, values))
            if isinstance(value, Proxy) and value.name == p.name:
                found = made.get(p.name, value)
                if found != p:
                    self.values[p.name] = found
            else:
                self.substitute(p, value, call.source)

    def part(
        self, name: str, inputs: Sequence[Proxy], calls: Sequence[BoundSymbol], outputs: Any
    ) -> Region:
        """``calls`` of the edited program as a region, to be the first argument of a call.

        ``inputs`` are all the values that they need, as the call has them, ``outputs`` the call's.
        """
        program = Trace(
            tuple(inputs),
            tuple(calls),
            outputs,
            name,
            context=self.trace.context,
            language=self.trace.language,
        )
        return Region(program, tuple(range(len(inputs))), returns=True)

    @classmethod
    def of_body(cls, body: Body, tags: TagRegistry) -> TraceEditor:
        """An editor of the calls of a body; `body` is what it became."""
        results = (body.outputs, body.updates)
        return cls(Trace(body.inputs, body.calls, results, language=EMPTY_LANGUAGE), tags)

    @staticmethod
    def program_of(body: Body, language: Notation, name: str) -> Trace:
        """The calls of ``body``, which updates nothing, as a claimed program of their own."""
        outputs = body.outputs
        return Trace(body.inputs, body.calls, outputs, name, stage=Stage.CLAIMED, language=language)

    def body(self) -> Body:
        """The edited program as the body of a call."""
        made = self.done()
        outputs, updates = made.outputs
        return Body(made.inputs, made.calls, outputs, updates)

    def of_region(self, program: Trace) -> TraceEditor:
        """An editor of a region's program."""
        return TraceEditor(program, self.tags)

    def inherited(self, p: Proxy) -> TagSet:
        """The tags of ``p`` with those that it inherits so far."""
        return p.tags if self.inheritance is None else self.inheritance.proxy(p).tags

    def changed(self, call: BoundSymbol, rule: str, plugin: str = "core", origin: str = "") -> None:
        """Record that ``rule`` of ``plugin`` edited ``call``."""
        self.changes.append(Change(call.label, plugin, rule, origin))

    def done(self, record: PassRecord | None = None, **changes: Any) -> Trace:
        """The edited program: the calls so far, outputs substituted, and ``changes``.

        ``record``, if given, is added to the history, with the changes that were recorded here. The
        same object, if calls and outputs are the old ones and no tag is inherited.
        """
        calls = tuple(self.calls)
        outputs = changes.pop("outputs", ...)
        outputs = self.mapped(self.trace.outputs) if outputs is ... else outputs
        same = len(calls) == len(self.trace.calls) and all(
            a is b for a, b in zip(calls, self.trace.calls, strict=True)
        )
        made = self.trace
        if not same or outputs is not self.trace.outputs or changes or self.changes:
            made = made.replace(calls=calls, outputs=outputs, **changes)
            if record is not None:
                made = recorded(made, replace(record, changes=(*record.changes, *self.changes)))
        return made if self.inheritance is None else self.inheritance.trace(made)


def recorded(trace: Trace, record: PassRecord) -> Trace:
    """``trace`` as the pass ``record`` made it: the pass is the last in its history."""
    return trace.replace(history=(*trace.history, record))


def timed(trace: Trace, seconds: float) -> Trace:
    """``trace``, whose last pass took ``seconds``."""
    *earlier, last = trace.history
    return trace.replace(history=(*earlier, replace(last, seconds=seconds)))


def at_stage(trace: Trace, stage: Stage) -> Trace:
    """``trace`` at ``stage``: what holds from there on holds of it."""
    return trace.replace(stage=stage)
