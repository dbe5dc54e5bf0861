"""Alias analysis: shared memory, chains of views, and mutated memory.

All facts follow from the effects of calls. Results are neither stored nor updated: a pass that
changed a trace computes them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tj_core.ir.proxy import NumberProxy, Proxy
from tj_core.ir.substitution import substituted
from tj_core.ir.tree import leaves

if TYPE_CHECKING:
    from tj_core.ir.effects import Alias
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = [
    "AliasFacts",
    "Place",
    "Storage",
    "ViewStep",
    "alias_facts",
    "makes_views",
    "same_objects",
    "storage_roots",
]


@dataclass(frozen=True, eq=False, slots=True)
class ViewStep:
    """One view call on the way from a root to an object.

    ``argument`` is the flat index of the base, ``output`` that of the view.
    """

    call: BoundSymbol
    argument: int
    output: int

    @property
    def key(self) -> tuple[int, int]:
        """A key that is equal for the same output of the same call."""
        return id(self.call), self.output


class Place(NamedTuple):
    """A root, by the name of its value in the program, and the path of views from it."""

    root: str
    path: tuple[ViewStep, ...] = ()

    @property
    def keys(self) -> tuple[tuple[int, int], ...]:
        """A key that is equal for the same path."""
        return tuple(step.key for step in self.path)

    def then(self, step: ViewStep) -> Place:
        """The place of the view that ``step`` makes of the value at this place."""
        return Place(self.root, (*self.path, step))


@dataclass
class Storage:
    """The objects and the memory of a program's values, after the calls so far.

    A *root* is memory that the program was given or made. ``names`` maps each value to its object,
    which has the name of its first value. ``roots`` maps an object to the roots whose memory it may
    share: several, if a call returns either of its arguments. ``places`` has the objects with one
    root and a known path of views from it. ``internal`` are roots that are views of memory inside
    of a call.
    """

    names: dict[str, str] = field(default_factory=dict)
    roots: dict[str, tuple[str, ...]] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    internal: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, trace: Trace) -> Storage:
        """The objects of a whole program."""
        found = cls()
        for p in trace.inputs:
            found.begin(p)
        for call in trace.calls:
            found.note(call)
        return found

    def begin(self, p: Proxy) -> None:
        """Note that ``p`` is new memory."""
        self.names[p.name] = p.name
        self.roots[p.name] = (p.name,)
        self.places[p.name] = Place(p.name)

    def object_of(self, p: Proxy) -> str:
        """The object of ``p``; new memory for a value that is no input and no call's output."""
        if p.name not in self.names:
            self.begin(p)
        return self.names[p.name]

    def roots_of(self, p: Proxy) -> tuple[str, ...]:
        """The roots whose memory ``p`` may share."""
        return self.roots[self.object_of(p)]

    def note(self, call: BoundSymbol) -> None:
        """Add the outputs of ``call``."""
        aliases = call.effects.aliases
        given = {p.name for p in call.flat_args}
        for i, p in enumerate(call.flat_outs):
            if p.name not in given:
                self.define(p, call, [a for a in aliases if a.output == i] if aliases else ())

    def rebind(self, p: Proxy, step: ViewStep) -> None:
        """Note that the object ``p`` becomes the view of itself that ``step`` makes."""
        name = self.object_of(p)
        self.places[name] = self.places[name].then(step)

    def memory(self) -> dict[str, str]:
        """For every value, the first value that may share its memory.

        Two roots count as one if a value may be in either.
        """
        several = [roots for roots in self.roots.values() if len(roots) > 1]
        if not several:
            return {name: self.roots[which][0] for name, which in self.names.items()}
        order = {name: i for i, name in enumerate(self.names)}
        first = {name: name for name in order}

        def of(root: str) -> str:
            while first[root] != root:
                root = first[root]
            return root

        for roots in several:
            eldest, *others = sorted({of(root) for root in roots}, key=order.__getitem__)
            first.update(dict.fromkeys(others, eldest))
        return {name: of(self.roots[which][0]) for name, which in self.names.items()}

    def define(self, p: Proxy, call: BoundSymbol, aliases: Sequence[Alias]) -> None:
        """Add ``p``, an output of ``call`` with these ``aliases``."""
        if not aliases:
            self.begin(p)
            if _is_opaque(call) and not isinstance(p, NumberProxy):
                taken = [q for q in call.flat_args if not isinstance(q, NumberProxy)]
                self._locate(p, [p, *taken])
            return
        values = {"arg": call.flat_args, "out": call.flat_outs}
        shared = [(a, values[a.kind][a.index]) for a in aliases if a.kind in values]
        for alias, value in shared:
            if alias.identical:
                self.names[p.name] = self.object_of(value)
                return
        self.begin(p)
        if shared:
            self._locate(p, [value for _, value in shared])
            alias, value = shared[0]
            at = self.places.get(self.names[value.name])
            if at and len(aliases) == 1 and alias.kind == "arg":
                self.places[p.name] = at.then(ViewStep(call, alias.index, alias.output))
        else:
            self.internal.add(p.name)

    def _locate(self, p: Proxy, others: list[Proxy]) -> None:
        """Note that ``p`` may be anywhere in the memory of ``others``."""
        found = [root for value in others for root in self.roots_of(value)]
        self.roots[p.name] = tuple(dict.fromkeys(found))
        if found != [p.name]:
            del self.places[p.name]


@dataclass(frozen=True, slots=True)
class AliasFacts:
    """The aliases and mutations of a trace.

    ``roots`` maps every value to the first value that may share its memory, ``objects`` to the
    first that is the same object. ``mutated`` are the roots whose memory or metadata a call of the
    program may change; ``escaping`` the roots that the program returns.
    """

    roots: Mapping[str, str]
    objects: Mapping[str, str]
    mutated: frozenset[str]
    escaping: frozenset[str]

    def is_mutated(self, value: Proxy) -> bool:
        """Test if a call of the program may write the memory of ``value``."""
        return self.roots[value.name] in self.mutated


def alias_facts(trace: Trace) -> AliasFacts:
    """The facts about ``trace``, in one walk over its calls.

    Inputs may overlap each other in ways that a trace does not show: a write to one counts for all.
    An opaque call, with side effects and no body, may write its arguments and outputs.
    """
    storage = Storage.of(trace)
    roots = storage.memory()
    mutated = {roots[p.name] for call in trace.calls for p in _mutated(call)}
    inputs = {p.name for p in trace.inputs}
    if not mutated.isdisjoint(inputs):
        mutated |= {roots[name] for name in inputs}
    returned = (x for x in leaves(trace.outputs) if isinstance(x, Proxy))
    escaping = frozenset(roots[p.name] for p in returned)
    return AliasFacts(roots, storage.names, frozenset(mutated), escaping)


def storage_roots(calls: Iterable[BoundSymbol]) -> dict[str, str]:
    """For every output of ``calls``, the first value that may share its memory."""
    calls = tuple(calls)
    storage = Storage()
    for call in calls:
        storage.note(call)
    memory = storage.memory()
    return {p.name: memory.get(p.name, p.name) for call in calls for p in call.flat_outs}


def same_objects(call: BoundSymbol) -> dict[str, Proxy]:
    """The outputs of ``call``, by name, that are the same object as an argument or another output.

    Each is mapped to that value.
    """
    values = {"arg": call.flat_args, "out": call.flat_outs}
    found: dict[str, Proxy] = {}
    for alias in call.effects.aliases:
        if alias.identical and alias.kind in values:
            given = values[alias.kind][alias.index]
            found[call.flat_outs[alias.output].name] = substituted(given, found)
    return found


def makes_views(call: BoundSymbol) -> bool:
    """Test for a call whose outputs all share memory with its arguments."""
    if not call.effects.aliases:
        return False
    views = {a.output for a in call.effects.aliases if a.kind == "arg"}
    return bool(call.flat_outs) and len(views) == len(call.flat_outs)


def _is_opaque(call: BoundSymbol) -> bool:
    """Test for a call with unknown effects: it has side effects, and no body."""
    return "side_effect" in call.effects.ordered and call.body is None


def _mutated(call: BoundSymbol) -> Iterator[Proxy]:
    for index in call.effects.written:
        yield call.flat_args[index]
    if _is_opaque(call):
        yield from call.flat_args
        yield from call.flat_outs
