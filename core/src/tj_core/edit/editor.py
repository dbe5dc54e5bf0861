"""The trace editor, by which every pass makes its trace.

A pass goes through the calls of a trace and keeps, replaces or drops each. The values of a dropped
call are substituted. The editor keeps names free, tags inherited and changes recorded, in one way
for all passes. Apart from it, only capture and the parser make traces (`tests/test_rooms.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tj_core.edit.bodies import with_args
from tj_core.edit.inlining import Inlined, inline
from tj_core.edit.tag_propagation import TagInheritance
from tj_core.ir.proxy import Proxy
from tj_core.ir.stage import Stage
from tj_core.ir.substitution import substituted, substitution
from tj_core.ir.trace import Body, BoundSymbol, Change, Notation, PassRecord, Subprogram, Trace
from tj_core.text.language import EMPTY_LANGUAGE

if TYPE_CHECKING:
    from tj_core.ir.names import Namer
    from tj_core.ir.tags import TagRegistry, TagSet
    from tj_core.source import Source

__all__ = ["TraceEditor", "at_stage", "recorded", "timed"]


class TraceEditor:
    """An edit of ``trace``, the program of a trace, a subprogram or a body.

    ``calls`` are the calls of the edited program so far. ``values`` maps names of old values to
    their substitutes. `done` records the ``changes``. ``tags`` is needed if values with tags are
    substituted.
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
        """A `Namer` of names that are free in the program."""
        return self.trace.namer()

    def current(self, p: Proxy) -> Any:
        """The substitute of ``p`` in the edited program: itself, another value, or a constant."""
        return substitution(self.values)(p)

    def moved(self, call: BoundSymbol) -> BoundSymbol:
        """``call`` with its arguments substituted; metadata must still fit."""
        return with_args(call, substitution(self.values)) if self.values else call

    def mapped(self, tree: Any) -> Any:
        """``tree`` with its values substituted."""
        return substituted(tree, self.values)

    def append(self, *calls: BoundSymbol) -> None:
        """Append ``calls``, whose arguments are values of the edited program."""
        self.calls += calls

    def insert(self, place: int, *calls: BoundSymbol) -> None:
        """Put ``calls`` before the call kept at ``place``."""
        self.calls[place:place] = calls

    def replace(self, place: int, *calls: BoundSymbol) -> None:
        """Replace the call kept at ``place`` by ``calls``, which may be none."""
        self.calls[place : place + 1] = calls

    def renamed(self, call: BoundSymbol) -> BoundSymbol:
        """``call`` with free names for its outputs, so that it can stand twice in the program."""
        names = {p.name: p.replace(name=self.fresh(p.name)) for p in call.defined()}
        return call.map_proxies(substitution(names))

    def substitute(self, old: Proxy, new: Any, source: Source | None = None) -> None:
        """Replace ``old`` by ``new`` in all later calls; ``new`` inherits the tags of ``old``.

        :raises TagError: if the tags contradict others that ``new`` inherits.
        """
        self.values[old.name] = new
        self.inherit(new, old.tags, source)

    def inherit(self, new: Any, tags: TagSet, source: Source | None = None) -> None:
        """Add ``tags`` to ``new`` at the end, since it may be defined already; not to a constant.

        :raises TagError: if the tags contradict others that ``new`` inherits.
        """
        if self.inheritance is not None:
            self.inheritance.inherit(new, tags, source)

    def inlined(self, call: BoundSymbol) -> Inlined:
        """The body of ``call`` under free names; its calls are not kept yet.

        :raises TraceError: if the call has no body that can replace it (`can_inline`).
        """
        assert self.tags is not None
        return inline(call, self.fresh, self.tags)

    def stands_for(self, call: BoundSymbol, start: int, values: Mapping[str, Any]) -> None:
        """Note that the calls kept from ``start`` on replace ``call``.

        ``values`` maps outputs of ``call`` to other values; the kept calls define the remaining
        outputs, under the old names.
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
    ) -> Subprogram:
        """``calls`` of the edited program as a subprogram, to be the first argument of a new call.

        ``inputs`` are all values that the subprogram reads, in the order of the new call's other
        arguments; ``outputs`` those of the new call.
        """
        program = Trace(
            tuple(inputs),
            tuple(calls),
            outputs,
            name,
            context=self.trace.context,
            language=self.trace.language,
        )
        return Subprogram(program, tuple(range(len(inputs))), returns=True)

    @classmethod
    def of_body(cls, body: Body, tags: TagRegistry) -> TraceEditor:
        """An editor of the calls of a body; its method `body` returns the edited body."""
        results = (body.outputs, body.updates)
        return cls(Trace(body.inputs, body.calls, results, language=EMPTY_LANGUAGE), tags)

    @staticmethod
    def program_of(body: Body, language: Notation, name: str) -> Trace:
        """The calls of ``body``, which must have no updates, as a claimed program."""
        outputs = body.outputs
        return Trace(body.inputs, body.calls, outputs, name, stage=Stage.CLAIMED, language=language)

    def body(self) -> Body:
        """The edited program as the body of a call."""
        made = self.done()
        outputs, updates = made.outputs
        return Body(made.inputs, made.calls, outputs, updates)

    def of_subprogram(self, program: Trace) -> TraceEditor:
        """An editor of a subprogram's program."""
        return TraceEditor(program, self.tags)

    def inherited(self, p: Proxy) -> TagSet:
        """The tags of ``p``, with the tags that it has inherited so far."""
        return p.tags if self.inheritance is None else self.inheritance.proxy(p).tags

    def changed(self, call: BoundSymbol, rule: str, plugin: str = "core", origin: str = "") -> None:
        """Record that ``rule`` of ``plugin`` edited ``call``."""
        self.changes.append(Change(call.label, plugin, rule, origin))

    def done(self, record: PassRecord | None = None, **changes: Any) -> Trace:
        """The edited program: the calls so far, outputs substituted, and ``changes``.

        ``record``, if given, is added to the history, with the recorded changes. The result is the
        same object if calls and outputs are unchanged and no tag is inherited.
        """
        calls = tuple(self.calls)
        # Not None by default, which a program may return.
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
    """``trace`` with the pass ``record`` as the last in its history."""
    return trace.replace(history=(*trace.history, record))


def timed(trace: Trace, seconds: float) -> Trace:
    """``trace`` with ``seconds`` as the time of its last pass."""
    *earlier, last = trace.history
    return trace.replace(history=(*earlier, replace(last, seconds=seconds)))


def at_stage(trace: Trace, stage: Stage) -> Trace:
    """``trace`` with its stage set; the caller guarantees the invariants of ``stage``."""
    return trace.replace(stage=stage)
