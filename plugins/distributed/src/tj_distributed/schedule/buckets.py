"""Buckets: small collectives of one group, data type and reduction, started as one.

PyTorch's coalesced operators take several tensors and return several, so that nothing is copied,
and the backend starts them together.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import BoundSymbol, PassContext, Symbol, TensorProxy, bind_outputs, leaves
from tj_torch.extend import byte_size

from tj_distributed.schedule.roles import Roles, known
from tj_distributed.sequence import PREFIX

__all__ = ["bucketed", "delayed"]

_ALL_REDUCE = f"{PREFIX}all_reduce.default"

_COALESCED = {
    f"{PREFIX}{name}.default": Symbol.parse(f"{PREFIX}{name}_coalesced.default")
    for name in ("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor")
}


@dataclass
class _Bucket:
    """Starts, by index, in order, and their bytes."""

    members: list[int] = field(default_factory=list)
    size: int = 0


def bucketed(
    calls: Sequence[BoundSymbol], limit: float, fits: Callable[[str], bool], context: PassContext
) -> list[BoundSymbol]:
    """``calls`` with buckets of at most ``limit`` bytes in the places of starts.

    A bucket of gathers stands where its first one stood, even before calls that prepare the
    others: `tj_distributed.schedule.placing` gives them their order. One of others stands where its
    last one stood, so that nothing is reduced later than the last gradient of its bucket is there.
    ``fits`` says of a group whether its backend has coalesced operators.
    """
    roles = Roles(calls)
    if limit:
        roles = delayed(roles)
        calls = roles.calls
    found = [b.members for b in _buckets(roles, limit, fits) if len(b.members) > 1]
    places: dict[int, list[BoundSymbol]] = {}
    for members in found:
        bucket = _made([calls[i] for i in members], context)
        places.update({i: [] for i in members})
        places[members[0 if members[0] in roles.gathers else -1]] = [bucket]
    return [call for i, old in enumerate(calls) for call in places.get(i, [old])]


def delayed(roles: Roles) -> Roles:
    """The calls; what needs a reduction and is needed only behind another start comes behind that.

    Gradients of one value by several reductions are added two at a time, the first two before the
    third reduction starts: each sum would end a bucket.
    """
    limits = sorted(roles.starts | roles.barriers)
    before: dict[int, list[int]] = {}
    for i in sorted(roles.reduced - roles.later):
        user = min(roles.users[i], default=i)
        between = limits[bisect.bisect(limits, i) : bisect.bisect_left(limits, user)]
        if between and roles.barriers.isdisjoint(between):
            before.setdefault(user, []).append(i)
    if not before:
        return roles
    moved, found = {i for others in before.values() for i in others}, list[BoundSymbol]()

    def emit(place: int) -> None:
        for other in before.get(place, ()):
            emit(other)
        found.append(roles.calls[place])

    for i in range(len(roles.calls)):
        if i not in moved:
            emit(i)
    return Roles(found)


def _buckets(roles: Roles, limit: float, fits: Callable[[str], bool]) -> list[_Bucket]:
    """The buckets. One ends where its size is reached, and where a result of it is needed."""
    found: list[_Bucket] = []
    open_: dict[Any, _Bucket] = {}
    needed = _needed(roles)
    for i, call in enumerate(roles.calls):
        for key, bucket in list(open_.items()):
            if i in roles.barriers or any(needed.get(m) == i for m in bucket.members):
                del open_[key]
        size = _size(call) if i in roles.around and call.symbol.qualname in _COALESCED else None
        if size is None or size > limit or not fits(roles.group(i)):
            continue
        key = _key(call, i in roles.gathers)
        if key not in open_ or open_[key].size + size > limit:
            open_[key] = _Bucket()
            found.append(open_[key])
        open_[key].members.append(i)
        open_[key].size += size
    return found


def _needed(roles: Roles) -> dict[int, int]:
    """For each start but gathers of inputs, the first call that has to wait for its result."""
    found: dict[int, int] = {}
    of: dict[int, set[int]] = {start: {start} for start in roles.starts}
    for i, read in enumerate(roles.reads):
        mine = {start for maker in read for start in of.get(maker, ())}
        if i in roles.later:
            of[i] = mine
        else:
            for start in mine:
                found.setdefault(start, i)
    return found


def _size(call: BoundSymbol) -> int | None:
    """Bytes of the larger side of a collective; None if it has to stay alone."""
    if not all(known(p) for p in (*call.flat_args, *call.flat_outs)):
        return None
    operand, result = call.args[0], call.outputs
    if call.symbol.qualname == _ALL_REDUCE and operand.strides != result.strides:
        # PyTorch's fake kernel of the coalesced operator says the operand's strides (2.10 to 2.15).
        return None
    sizes = (sum(map(byte_size, side)) for side in (call.flat_args, call.flat_outs))
    return max(sizes)


def _key(call: BoundSymbol, gather: bool) -> Any:
    """Facts that collectives of one bucket have in common."""
    tensor = call.args[0]
    assert isinstance(tensor, TensorProxy)
    rest = (*call.args[1:], *call.kwargs)
    # With tags and context, which are those of the one call then.
    return gather, call.symbol, tensor.dtype, tensor.device, rest, call.context, call.tags


def _made(members: Sequence[BoundSymbol], context: PassContext) -> BoundSymbol:
    """One call in the place of ``members``, which returns their values."""
    first = members[0]
    operands = [call.args[0] for call in members]
    call = first.replace(
        symbol=_COALESCED[first.symbol.qualname], args=(operands, *first.args[1:]), outputs=None
    )
    made = [call.outputs for call in members]
    call = bind_outputs(call, context.expand.require(call).value(call), lambda i: made[i].name)
    assert all(p.same_meta(q) for p, q in zip(leaves(call.outputs), made, strict=True))
    return call.replace(outputs=made)
