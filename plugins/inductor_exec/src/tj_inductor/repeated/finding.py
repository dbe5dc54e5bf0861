"""Equal parts of a region: calls that depend on no call of another part, on other inputs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from tj_core.extend import (
    NEW_VALUE_OF,
    BoundSymbol,
    FusionRegion,
    Proxy,
    TensorProxy,
    free_values,
    makes_views,
    symbols_in,
)
from tj_core.internal import call_token, closed_body, region_key

from tj_inductor.operators import operator_of

__all__ = ["Equal", "Place", "equal_parts", "repeats"]

LEAST_GAIN = 24
"""Least number of calls that need not be compiled again; also at least half of all."""

MOST_ELEMENTS = 1 << 28
"""More would not be at an offset of 32 bits (`Waiting.by_rows`)."""

Place: TypeAlias = "tuple[int, int | None]"
"""A tensor that a part takes: an input of the whole region, or the element of one at an index."""


@dataclass(frozen=True, slots=True)
class Equal:
    """Equal parts of a region: ``region`` is one of them.

    ``inputs`` has what each part takes, ``outputs`` the outputs of the whole that it makes.
    """

    region: FusionRegion
    inputs: tuple[tuple[Place, ...], ...]
    outputs: tuple[tuple[int, ...], ...]


def repeats(calls: Sequence[BoundSymbol]) -> bool:
    """Decide if ``calls``, planned for one region, are worth a region of `equal_parts`."""
    if len(calls) <= LEAST_GAIN or any(map(makes_views, calls)) or not all(map(_is_simple, calls)):
        return False
    read = {p.name for call in calls for p in call.flat_args}
    tagged = (p for call in calls for p in call.flat_outs if NEW_VALUE_OF in p.tags)
    written = {p.name: old for p in tagged if (old := str(p.tags[NEW_VALUE_OF])) in read}
    parts = _parts(calls, {*written.values()}, ())
    if any(_writes_unread(part, written) for part in parts):
        return False  # the region would not be one of `equal_parts`
    kinds = {tuple(call_token(call) for call in part) for part in parts}
    return _is_worth_it(len(calls), sum(map(len, kinds)))


def _writes_unread(part: Sequence[BoundSymbol], written: Mapping[str, str]) -> bool:
    """Test if ``part`` makes the new value of an input, by ``written``, that another part reads."""
    made = {p.name for call in part for p in call.flat_outs}
    news = {old for new, old in written.items() if new in made}
    return not news <= {p.name for call in part for p in call.flat_args}


def equal_parts(region: FusionRegion) -> Sequence[Equal] | None:
    """The parts of ``region``, equal ones together; None if they are not worth it."""
    calls = region.body.calls
    if len(calls) < LEAST_GAIN or region.strides or symbols_in(region.inputs):
        return None
    inputs = {p.name: i for i, p in enumerate(region.inputs)}
    written = {region.inputs[i].name for i in region.overwritten.values()}
    outputs = region.outputs
    if {p.name for p in outputs} & inputs.keys() or len({p.name for p in outputs}) < len(outputs):
        return None
    elements = {
        call.flat_outs[0].name: (inputs[call.args[0].name], call.args[2])
        for call in calls
        if _is_element(call, inputs.keys() - written)
    }
    rest = [c for c in calls if not any(p.name in elements for p in c.flat_outs)]
    if not all(map(_is_simple, rest)):
        return None
    places: dict[str, Place] = {**{name: (i, None) for name, i in inputs.items()}, **elements}
    made = {p.name: i for i, p in enumerate(outputs)}
    if not made.keys() <= {p.name for call in rest for p in call.flat_outs}:
        return None
    whole = {i: region.inputs[k].name for i, k in region.overwritten.items()}
    found: dict[str, list[tuple[FusionRegion, tuple[Place, ...], tuple[int, ...]]]]
    found = defaultdict(list)
    for part in _parts(rest, written, made.keys()):
        taken = free_values(part)
        returned = [p for call in part for p in call.flat_outs if p.name in made]
        at = {p.name: i for i, p in enumerate(taken)}
        targets = {i: whole[n] for i, p in enumerate(returned) if (n := made[p.name]) in whole}
        if not {*targets.values()} <= at.keys():
            return None  # another part reads what is overwritten
        over = {i: at[name] for i, name in targets.items()}
        body = closed_body(taken, tuple(part), tuple(returned))
        key = region_key(body, region.backward, sorted(over.items()))
        one = FusionRegion(
            body, key, region.language, region.backward, source=region.source, overwritten=over
        )
        row = tuple(places[p.name] for p in taken)
        found[key].append((one, row, tuple(made[p.name] for p in returned)))
    if not _is_worth_it(len(rest), sum(len(e[0][0].body.calls) for e in found.values())):
        return None
    return [
        Equal(same[0][0], tuple(row for _, row, _ in same), tuple(outs for *_, outs in same))
        for same in found.values()
    ]


def _is_worth_it(calls: int, distinct: int) -> bool:
    return calls - distinct >= LEAST_GAIN and 2 * distinct <= calls


COPIES = frozenset({"copy", "_to_copy", "zeros_like", "ones_like", "full_like"})
"""Operators beside pointwise ones that Inductor computes element by element."""


def _is_simple(call: BoundSymbol) -> bool:
    """Test for an operator on floats of fixed sizes on the CPU that computes element by element.

    It refuses no value, and needs no memory beside its results.
    """
    operator = operator_of(call.symbol)
    if operator is None or torch.Tag.nondeterministic_seeded in operator.tags:
        return False
    name = call.symbol.path.partition(".")[0]
    values = (*call.flat_args, *call.flat_outs)
    return (
        (torch.Tag.pointwise in operator.tags or name in COPIES or makes_views(call))
        and not symbols_in(values)
        and all(map(_is_plain, values))
    )


def _is_plain(p: Proxy) -> bool:
    return (
        isinstance(p, TensorProxy)
        and p.device.type == "cpu"
        and p.dtype.name.startswith(("float", "bfloat", "bool"))
    )


def _is_element(call: BoundSymbol, inputs: Iterable[str]) -> bool:
    """Test for one element of an input with one dimension, as a tensor."""
    x = call.args[0] if call.args else None
    return (
        call.symbol.qualname == "aten.select.int"
        and isinstance(x, TensorProxy)
        and x.name in inputs
        and x.strides == (1,)
        and isinstance(call.args[2], int)
        and 0 <= call.args[2] < MOST_ELEMENTS
    )


def _parts(
    calls: Sequence[BoundSymbol], written: Collection[str], returned: Collection[str]
) -> list[list[BoundSymbol]]:
    """``calls`` in parts that share no value made by a call, and no input in ``written``.

    Each part makes a number that several read again, if no one else needs it (``returned``).
    """
    made = {p.name for call in calls for p in call.flat_outs}
    reads = Counter(name for call in calls for name in {p.name for p in call.flat_args})
    again = {
        call.flat_outs[0].name: call
        for call in calls
        if reads[call.flat_outs[0].name] > 1
        and _is_number(call)
        and {*made, *written}.isdisjoint(p.name for p in call.flat_args)
        and call.flat_outs[0].name not in returned
    }
    shared = {*written, *made} - again.keys()
    first: dict[str, int] = {}
    joined = list(range(len(calls)))

    def root(place: int) -> int:
        while joined[place] != place:
            joined[place] = place = joined[joined[place]]
        return place

    for place, call in enumerate(calls):
        for p in (*call.flat_args, *call.flat_outs):
            if p.name in shared:
                joined[root(place)] = root(first.setdefault(p.name, place))
    found: dict[int, dict[str, BoundSymbol]] = defaultdict(dict)
    for place, call in enumerate(calls):
        if call.flat_outs[0].name not in again:
            part = found[root(place)]
            needed = (again[p.name] for p in call.flat_args if p.name in again)
            part.update((c.label, c) for c in (*needed, call))
    return [[*part.values()] for part in found.values()]


def _is_number(call: BoundSymbol) -> bool:
    """Test for a call that makes one tensor without dimensions."""
    out = call.flat_outs[0]
    return len(call.flat_outs) == 1 and isinstance(out, TensorProxy) and not out.shape
