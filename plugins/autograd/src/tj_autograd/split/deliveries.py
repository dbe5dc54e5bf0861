"""Gradients that are handed on as soon as they are made, group by group.

A node hands its gradients on when all of its backward is over. Whoever waits for some of them, as a
reduction over processes does, puts the tag `GRADIENT_GROUP` on inputs: behind the last call of the
backward that contributes to a group, the program is cut, so that what comes later is another node.

Such a place is moved to the next one of the fewest bytes, if no product of matrices lies between:
each value that crosses it is kept for second derivatives, and its gradient is no part of a kernel.
A checkpointed region stays whole, since each of its parts would run it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence

from tj_core.extend import BoundSymbol, Proxy, Tag, Trace, requires_grad
from tj_torch.extend import byte_size

from tj_autograd.joint.checkpoints import region, runs_again
from tj_autograd.joint.segments import Cut, Records, carries, cut
from tj_autograd.split.costs import may_multiply

__all__ = ["GRADIENT_GROUP", "segments_of"]

GRADIENT_GROUP = Tag(
    "GRADIENT_GROUP",
    "gradients of the inputs with the same number are handed on as soon as all of them are made",
    carriers=frozenset({"proxy"}),
    into_body=False,
    to_replacement=False,
)


def segments_of(trace: Trace, records: Records) -> Cut:
    """The segments of ``trace``: also those that its groups of gradients ask for."""
    return cut(trace, records, _stages(trace))


def _stages(trace: Trace) -> dict[str, int]:
    """For each label of a call, the number of places before it at which the program is cut.

    Empty if no gradient is to be handed on before the others.
    """
    groups = {p.name: p.tags[GRADIENT_GROUP.name] for p in trace.inputs if _is_grouped(p)}
    if not groups:
        return {}
    calls = [call for call in trace.calls if carries(call)]
    first: dict[object, int] = {}
    for i, call in enumerate(calls):
        for p in call.flat_args:
            if p.name in groups:
                first.setdefault(groups[p.name], i)
    last = {*first.values()}
    crossing = _crossing(calls)
    places = {_moved(calls, i, last, crossing) for i in last} - {0}
    found, stage = {}, 0
    for i, call in enumerate(calls):
        stage += i in places
        found[call.label] = stage
    return found if places else {}


def _is_grouped(p: Proxy) -> bool:
    return requires_grad(p) and GRADIENT_GROUP.name in p.tags


def _crossing(calls: Sequence[BoundSymbol]) -> list[int]:
    """Bytes of the values that cross the place before each call: with gradients, made before it and
    taken from there on.
    """
    made = {p.name: (i, byte_size(p)) for i, c in enumerate(calls) for p in c.flat_outs}
    last = {p.name: i for i, call in enumerate(calls) for p in call.flat_args}
    change = [0] * (len(calls) + 1)
    for name, (i, size) in made.items():
        if name in last:
            change[i + 1] += size
            change[last[name] + 1] -= size
    return list(itertools.accumulate(change))


def _moved(
    calls: Sequence[BoundSymbol], place: int, last: Container[int], crossing: Sequence[int]
) -> int:
    """The place of the fewest bytes from ``place`` back to a product, or to the end of a group.

    ``last`` are the places where a group ends.
    """
    found = place = _before_region(calls, place)
    while place > 0 and place - 1 not in last and _is_light(calls[place - 1]):
        place -= 1
        if crossing[place] <= crossing[found]:
            found = place
    return found


def _is_light(call: BoundSymbol) -> bool:
    return not may_multiply(call) and not runs_again(call)


def _before_region(calls: Sequence[BoundSymbol], place: int) -> int:
    """``place``, or the beginning of the checkpointed region that it is in."""
    here = region(calls[place]) if runs_again(calls[place]) else ""
    while here and place > 0 and region(calls[place - 1]) == here:
        place -= 1
    return place
