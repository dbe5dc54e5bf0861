"""The segments of a program with several results, each of which is a node of PyTorch's autograd.

In eager a result that others depend on has their gradient, and each result its own way back, which
is freed when it was gone. So the calls that carry gradients are put in segments: those on which the
same results depend. Values that cross from one segment to another are results of the earlier one's
node and arguments of the later one's. The forward stays one program.

A node hands its gradients on when all of its backward is over. What comes behind a call that
PyTorch's autograd records, as of a recurrent network, is therefore another segment: its gradients
do not wait, in memory, for the backward of that call, which needs more than others. Where a
parameter has a gradient already, they are added to it and gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Proxy,
    TensorProxy,
    Trace,
    TraceEditor,
    alias_facts,
    dependent_values,
    leaves,
    requires_grad,
    substitution,
)
from tj_torch.extend import COPIED_BACK, RETURNED_VIEW

__all__ = [
    "Cut",
    "Records",
    "alone",
    "carries",
    "cut",
    "is_returned_view",
    "uncut",
    "user_of_overwritten",
]

Records = Callable[[BoundSymbol], bool]
"""Whether PyTorch's autograd records a call as it runs, whatever it is given."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The segments of a program, in an order in which each comes after those that it depends on.

    ``outputs`` are the values that each returns to autograd: results of the program, and what
    later segments take. ``segments`` says by its label which segment a call belongs to; ``makers``
    the same of a value. Gradients of what several segments use, or what is returned, are
    ``apart``: autograd adds them, and not the program. ``views`` are the segments whose calls make
    views that are returned, or write: these run where autograd sees them, and are no nodes of tj's.
    """

    outputs: tuple[tuple[TensorProxy, ...], ...]
    segments: dict[str, int] = field(default_factory=dict)
    makers: dict[str, int] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    views: frozenset[int] = frozenset()

    def segment(self, call: BoundSymbol) -> int | None:
        """The segment of ``call``, or of the one that it is a part of."""
        if self.whole:
            return 0
        found = self.segments.get(call.label)
        return self.segments.get(call.parent or "") if found is None else found

    @property
    def whole(self) -> bool:
        """Whether there is one segment."""
        return len(self.outputs) == 1

    def name(self, index: int) -> str:
        """How the backward of the segment at ``index`` is called."""
        place = sum(i not in self.views for i in range(index))
        return f"backward.{place}" if place else "backward"

    def taken(self, index: int) -> tuple[TensorProxy, ...]:
        """The values of earlier segments that the segment at ``index`` may take."""
        return tuple(p for outputs in self.outputs[:index] for p in outputs)

    def owners(self, layout: Sequence[object] | None = None) -> list[int]:
        """The segment of each tangent that exists: ``layout`` has None for others."""
        places = [i for i, outputs in enumerate(self.outputs) for _ in outputs]
        return [i for i, how in zip(places, layout or places, strict=True) if how is not None]

    def shown(self, index: int, layout: Sequence[Any]) -> tuple[Any, ...]:
        """The layout of all tangents where only those of one segment exist, as ``layout`` says."""
        mine = iter(layout)
        return tuple(next(mine) if i == index else None for i in self.owners())


def is_returned_view(call: BoundSymbol) -> bool:
    """Whether autograd has to see ``call`` itself."""
    return any(RETURNED_VIEW.name in p.tags for p in call.flat_outs)


def carries(call: BoundSymbol) -> bool:
    """Whether a gradient may flow through ``call``: one of its outputs has one to give."""
    if call.context.get("grad") is False or call.context.get("inference"):
        return False
    return any(map(requires_grad, call.flat_outs)) and any(map(requires_grad, call.flat_args))


def user_of_overwritten(trace: Trace, cut: Cut) -> BoundSymbol | None:
    """A call through which a gradient flows to an argument as it was before autograd wrote it.

    One in a later segment, where autograd knows the argument as it is then.
    """
    written = {
        str(call.args[1]): cut.segments[call.label]
        for call in trace.calls
        if call.symbol == COPIED_BACK and call.label in cut.segments
    }
    for call in trace.calls:
        place = cut.segments.get(call.label, -1)
        used = {p.name for p in call.flat_args if requires_grad(p)}
        if any(place > written[name] for name in used & written.keys()):
            return call
    return None


def uncut(trace: Trace) -> Cut:
    """One segment."""
    return Cut((tuple(_roots(trace)),))


def cut(trace: Trace, records: Records) -> Cut:
    """The segments of ``trace``.

    One, if all that carries gradients has the same results and nothing comes behind a call that
    autograd ``records``.
    """
    roots = _roots(trace)
    dependents, behind = _dependents(trace, roots), _behind(trace, records)
    # What makes views that are returned is kept apart from all else.
    sets = {
        id(call): 4 * found + 2 * (id(call) in behind) + is_returned_view(call)
        for call, found in zip(trace.calls, dependents, strict=True)
        if found
    }
    if len(set(sets.values())) < 2:
        return uncut(trace)
    calls = [call for call in trace.calls if id(call) in sets]
    order = _ordered(calls, [sets[id(call)] for call in calls])
    places = [order.index(sets[id(call)]) for call in calls]
    found = _cut(calls, _finer(calls, places), roots)
    return uncut(trace) if _twice(trace, found) else found


def _twice(trace: Trace, found: Cut) -> bool:
    """Whether a segment would return one tensor under two names."""
    objects = alias_facts(trace).objects
    returned = {p.name for outputs in found.outputs for p in outputs}
    return len({objects[name] for name in returned}) < len(returned)


def _roots(trace: Trace) -> list[TensorProxy]:
    """The distinct results that carry a gradient and are no inputs."""
    known = {p.name for p in trace.inputs}
    found = {p.name: p for p in leaves(trace.outputs) if requires_grad(p)}
    return [p for name, p in found.items() if name not in known]


def _dependents(trace: Trace, roots: Sequence[Proxy]) -> list[int]:
    """For each call, which of the ``roots`` depend on it, as bits; 0 if it carries no gradient."""
    known = {p.name: 1 << i for i, p in enumerate(roots)}
    found = []
    for call in reversed(trace.calls):
        here = 0
        for p in call.flat_outs:
            here |= known.get(p.name, 0)
        found.append(here)
        if here and carries(call):
            for p in call.flat_args:
                if requires_grad(p):
                    known[p.name] = known.get(p.name, 0) | here
    return found[::-1]


def _behind(trace: Trace, records: Records) -> set[int]:
    """The calls, by identity, that depend on one that autograd ``records``, and feed none."""
    recorded = {id(call): call for call in trace.calls if carries(call) and records(call)}
    if not recorded:
        return set()
    results = (p.name for call in recorded.values() for p in call.flat_outs)
    dependent, feeding = dependent_values(trace.calls, results), set[str]()
    found = set()
    for call in reversed(trace.calls):
        if id(call) in recorded or any(p.name in feeding for p in call.flat_outs):
            feeding.update(p.name for p in call.flat_args)
        elif any(p.name in dependent for p in call.flat_args):
            found.add(id(call))
    return found


def _ordered(calls: Sequence[BoundSymbol], sets: Sequence[int]) -> list[int]:
    """The distinct ``sets``, each after those that feed it; else in the order of their last calls.

    Autograd goes back through nodes made later first.
    """
    last = {found: i for i, found in enumerate(sets)}
    maker = {p.name: s for call, s in zip(calls, sets, strict=True) for p in call.flat_outs}
    feeds: dict[int, set[int]] = {found: set() for found in last}
    for call, here in zip(calls, sets, strict=True):
        feeds[here] |= {maker[p.name] for p in call.flat_args if p.name in maker} - {here}
    order: list[int] = []
    while left := sorted(last.keys() - set(order), key=last.__getitem__):
        order.append(next(found for found in left if feeds[found] <= set(order)))
    return order


def _finer(calls: Sequence[BoundSymbol], places: Sequence[int]) -> list[int]:
    """``places`` where no segment adds to a gradient too late.

    What a segment adds to the gradient of a value that it returns comes after what others add. Of
    three contributions or more that must be the order in which eager adds, from the last call to
    the first; else what the segment makes of the value becomes a segment of its own.
    """
    found, users = list(places), _users(calls)
    for i, call in enumerate(calls):
        for p in call.flat_outs:
            used = users.get(p.name, [])
            inside = [k for k in used if found[k] == found[i]]
            outside = [k for k in used if found[k] != found[i]]
            if len(used) > 2 and inside and outside and inside[-1] > outside[0]:
                found = _parted(calls, found, i, p.name)
    return found


def _parted(calls: Sequence[BoundSymbol], places: Sequence[int], at: int, value: str) -> list[int]:
    """``places`` where what the maker's segment makes of ``value`` is the next one."""
    here = places[at]
    mine = [call for call, k in zip(calls, places, strict=True) if k == here]
    made = dependent_values(mine, [value])

    def moves(call: BoundSymbol, k: int) -> bool:
        return k > here or (k == here and any(p.name in made for p in call.flat_args))

    return [k + moves(call, k) for call, k in zip(calls, places, strict=True)]


def _users(calls: Sequence[BoundSymbol]) -> dict[str, list[int]]:
    """The places of the calls through which the gradient of each value flows, in order."""
    users: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        if carries(call):
            for name in {p.name for p in call.flat_args if requires_grad(p)}:
                users.setdefault(name, []).append(i)
    return users


def _cut(calls: Sequence[BoundSymbol], places: Sequence[int], roots: Sequence[TensorProxy]) -> Cut:
    """The cut of ``calls``, whose segments are ``places``."""
    made = {p.name: (i, p) for call, i in zip(calls, places, strict=True) for p in call.flat_outs}
    users = {name: {places[i] for i in found} for name, found in _users(calls).items()}
    returned = {p.name for p in roots}
    outputs: list[list[TensorProxy]] = [[] for _ in range(max(places) + 1)]
    for name, (i, p) in made.items():
        if name in returned or users.get(name, {i}) != {i}:
            assert isinstance(p, TensorProxy)
            outputs[i].append(p)
    makers = {name: i for name, (i, _) in made.items()}
    return Cut(
        tuple(map(tuple, outputs)),
        {call.label: i for call, i in zip(calls, places, strict=True)},
        makers,
        frozenset(name for name, found in users.items() if name in returned or len(found) > 1),
        frozenset(i for call, i in zip(calls, places, strict=True) if is_returned_view(call)),
    )


def alone(trace: Trace, cut: Cut, index: int) -> Trace:
    """The part of ``trace`` that the segment at ``index`` is: from inputs and what it takes.

    These are inputs with their own names; what other segments' calls make of them goes by others.
    """
    editor = TraceEditor(trace)
    if cut.whole:
        editor.keep(*trace.calls)
        return editor.done(outputs=cut.outputs[0])
    names = {p.name: p.replace(name=editor.fresh(p.name)) for p in cut.taken(index)}
    renamed = substitution(names)

    def other(call: BoundSymbol) -> bool:
        return cut.segments.get(call.label, index) != index

    editor.keep(*(call.map_proxies(renamed) if other(call) else call for call in trace.calls))
    return editor.done(inputs=(*trace.inputs, *cut.taken(index)), outputs=cut.outputs[index])
