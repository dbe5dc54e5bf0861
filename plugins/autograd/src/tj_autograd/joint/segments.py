"""Segments of a program with several results: each is a node of PyTorch's autograd.

In eager a result that others depend on receives their gradient, and each result has a graph of its
own, which is freed after its backward. So calls that carry gradients are grouped into segments: the
calls on which the same results depend. A value that crosses from one segment to another is a result
of the earlier node and an argument of the later one. The forward stays one program.

A node hands its gradients on when all of its backward is over. Calls behind one that PyTorch's
autograd records (a recurrent network) are therefore another segment: their gradients need not wait,
in memory, for the backward of that call, whose peak of memory is higher. Where a parameter has a
gradient already, they are added to it and freed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
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
from tj_torch.internal import COPIED_BACK, RETURNED_VIEW

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
"""Tests if PyTorch's autograd records a call as it runs, whatever its arguments."""

NO_STAGES: Mapping[str, int] = MappingProxyType({})

_Set = tuple[int, int]
"""Stage of calls, and bits for the results that depend on them."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The segments of a program, each after those that it depends on.

    ``outputs`` are the values that each segment returns to autograd: results of the program, and
    values that later segments take. ``segments`` maps the label of a call to its segment,
    ``makers`` the name of a value. ``apart`` are values that several segments use, or that are used
    and returned: autograd adds their gradients, not the program. ``views`` are segments whose calls
    make views that are returned, or write arguments: they run where autograd sees them, and are no
    nodes of tj's.
    """

    outputs: tuple[tuple[TensorProxy, ...], ...]
    segments: dict[str, int] = field(default_factory=dict)
    makers: dict[str, int] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    views: frozenset[int] = frozenset()

    def segment(self, call: BoundSymbol) -> int | None:
        """The segment of ``call``, or of its parent."""
        if self.whole:
            return 0
        found = self.segments.get(call.label)
        return self.segments.get(call.parent or "") if found is None else found

    @property
    def whole(self) -> bool:
        """True for a cut of a single segment."""
        return len(self.outputs) == 1

    def name(self, index: int) -> str:
        """Name of the backward of the segment at ``index``: ``backward``, ``backward.1``, and so
        on.
        """
        place = sum(i not in self.views for i in range(index))
        return f"backward.{place}" if place else "backward"

    def taken(self, index: int) -> tuple[TensorProxy, ...]:
        """Values of earlier segments that the segment at ``index`` may take."""
        return tuple(p for outputs in self.outputs[:index] for p in outputs)

    def owners(self, layout: Sequence[object] | None = None) -> list[int]:
        """The segment of each tangent that exists; ``layout`` has None for the others."""
        places = [i for i, outputs in enumerate(self.outputs) for _ in outputs]
        return [i for i, how in zip(places, layout or places, strict=True) if how is not None]

    def shown(self, index: int, layout: Sequence[Any]) -> tuple[Any, ...]:
        """The layout of all tangents where only those of one segment
        exist, laid out by ``layout``.
        """
        mine = iter(layout)
        return tuple(next(mine) if i == index else None for i in self.owners())


def is_returned_view(call: BoundSymbol) -> bool:
    """Check that autograd has to see ``call`` itself: it makes a view that is returned."""
    return any(RETURNED_VIEW.name in p.tags for p in call.flat_outs)


def carries(call: BoundSymbol) -> bool:
    """Check that a gradient may flow through ``call``: an argument and an output require grad."""
    if call.context.get("grad") is False or call.context.get("inference"):
        return False
    return any(map(requires_grad, call.flat_outs)) and any(map(requires_grad, call.flat_args))


def user_of_overwritten(trace: Trace, cut: Cut) -> BoundSymbol | None:
    """Find a call that takes an argument's old value, with a gradient, after autograd has seen it
    written.

    Such a call is in a later segment than the write. To autograd the argument is the written tensor
    there.
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
    """Make a cut of one segment."""
    return Cut((tuple(_roots(trace)),))


def cut(trace: Trace, records: Records, stages: Mapping[str, int] = NO_STAGES) -> Cut:
    """Group the calls of ``trace`` into segments.

    There is one segment if all calls that carry gradients lead to the same results, none comes
    behind a call that autograd ``records``, and all have the same of ``stages``. These are numbers
    by the label of a call, which do not fall from call to call.
    """
    roots = _roots(trace)
    dependents, behind = _dependents(trace, roots), _behind(trace, records)
    # Calls that make returned views are segments of their own: autograd has to see them run.
    sets = {
        id(call): (
            stages.get(call.label, 0),
            4 * found + 2 * (id(call) in behind) + is_returned_view(call),
        )
        for call, found in zip(trace.calls, dependents, strict=True)
        if found
    }
    # One node computes all gradients: the usual program with one loss.
    if len(set(sets.values())) < 2:
        return uncut(trace)
    calls = [call for call in trace.calls if id(call) in sets]
    order = _ordered(calls, [sets[id(call)] for call in calls])
    if order is None:
        return uncut(trace)
    places = [order.index(sets[id(call)]) for call in calls]
    found = _cut(calls, _finer(calls, places), roots)
    # Autograd would see one tensor as the output of two nodes.
    return uncut(trace) if _twice(trace, found) else found


def _twice(trace: Trace, found: Cut) -> bool:
    """Check for one tensor that segments would return under two names."""
    objects = alias_facts(trace).objects
    returned = {p.name for outputs in found.outputs for p in outputs}
    return len({objects[name] for name in returned}) < len(returned)


def _roots(trace: Trace) -> list[TensorProxy]:
    """Distinct results that require grad and are no inputs."""
    known = {p.name for p in trace.inputs}
    found = {p.name: p for p in leaves(trace.outputs) if requires_grad(p)}
    return [p for name, p in found.items() if name not in known]


def _dependents(trace: Trace, roots: Sequence[Proxy]) -> list[int]:
    """For each call, the ``roots`` that depend on it, as bits; 0 if it carries no gradient."""
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
    """Ids of calls that depend on a call which autograd ``records``, and feed no such call."""
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


def _ordered(calls: Sequence[BoundSymbol], sets: Sequence[_Set]) -> list[_Set] | None:
    """Sort the distinct ``sets``, each after those that feed it; ties go by their last calls.

    Autograd runs nodes that were made later first. None if two feed each other, as where gradients
    are off: kernels for lists make the values of all parameters, and take them again.
    """
    last = {found: i for i, found in enumerate(sets)}
    maker = {p.name: s for call, s in zip(calls, sets, strict=True) for p in call.flat_outs}
    feeds: dict[_Set, set[_Set]] = {found: set() for found in last}
    for call, here in zip(calls, sets, strict=True):
        feeds[here] |= {maker[p.name] for p in call.flat_args if p.name in maker} - {here}
    order: list[_Set] = []
    while left := sorted(last.keys() - set(order), key=last.__getitem__):
        free = next((found for found in left if feeds[found] <= set(order)), None)
        if free is None:
            return None
        order.append(free)
    return order


def _finer(calls: Sequence[BoundSymbol], places: Sequence[int]) -> list[int]:
    """Refine ``places`` so that no segment adds to a gradient too late.

    The contribution of a segment to the gradient of a value that it returns is added after those of
    other segments. Where three or more calls contribute, eager's order, from the last call to the
    first, may differ. Then the calls that use the value become a segment of their own.
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
    """Move the calls of the maker's segment that depend on ``value`` to the next segment."""
    here = places[at]
    mine = [call for call, k in zip(calls, places, strict=True) if k == here]
    made = dependent_values(mine, [value])

    def moves(call: BoundSymbol, k: int) -> bool:
        return k > here or (k == here and any(p.name in made for p in call.flat_args))

    return [k + moves(call, k) for call, k in zip(calls, places, strict=True)]


def _users(calls: Sequence[BoundSymbol]) -> dict[str, list[int]]:
    """Indices of the calls through which the gradient of each value flows, in order."""
    users: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        if carries(call):
            for name in {p.name for p in call.flat_args if requires_grad(p)}:
                users.setdefault(name, []).append(i)
    return users


def _cut(calls: Sequence[BoundSymbol], places: Sequence[int], roots: Sequence[TensorProxy]) -> Cut:
    """Make the cut of ``calls`` whose segments are ``places``."""
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
    """Extract the segment at ``index`` from ``trace``, with its inputs and the values that it
    takes.

    Taken values become inputs under their own names; the calls of other segments that make them
    define other names.
    """
    editor = TraceEditor(trace)
    if cut.whole:
        editor.append(*trace.calls)
        return editor.done(outputs=cut.outputs[0])
    names = {p.name: p.replace(name=editor.fresh(p.name)) for p in cut.taken(index)}
    renamed = substitution(names)

    def other(call: BoundSymbol) -> bool:
        return cut.segments.get(call.label, index) != index

    editor.append(*(call.map_proxies(renamed) if other(call) else call for call in trace.calls))
    return editor.done(inputs=(*trace.inputs, *cut.taken(index)), outputs=cut.outputs[index])
