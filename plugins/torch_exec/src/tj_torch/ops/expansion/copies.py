"""Remove clones whose source is never written; nothing is written in a body."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from tj_core.extend import leaves, map_tree

from tj_torch.ops.expansion.body import live_calls
from tj_torch.ops.expansion.recorder import Recorded, Recorder, Ref
from tj_torch.torch_private import ops as private

__all__ = ["without_copies"]

_COPIES = {"aten.clone.default": 0, "aten.copy.default": 1}
"""Operators that copy an argument, with its position."""


def without_copies(
    recorder: Recorder, calls: Sequence[Recorded], returned: Iterable[Ref]
) -> list[Recorded]:
    """``calls`` without copies that are indistinguishable from their sources.

    Such a copy has the source's strides and is not ``returned``, since the caller may write to
    returned values. A copy that is viewed stays, since a view's aliases and autograd history
    depend on its base.
    """
    values, returned = recorder.values, frozenset(returned)
    while True:
        live = live_calls(calls, returned, _refs)
        viewed = {r for call in live for r in _viewed(values, call)}
        made = _without(values, calls, viewed | returned)
        if len(made) == len(calls):
            return made
        calls = made  # a view of a copy may be dead now


def _without(
    values: Sequence[object], calls: Sequence[Recorded], pinned: Container[Ref]
) -> list[Recorded]:
    """``calls`` without copies that have the metadata of their sources, except ``pinned`` ones."""
    same: dict[Ref, Ref] = {}
    kept = []
    for call in calls:
        args, kwargs = map_tree(lambda r: same.get(r, r), (call.args, call.kwargs), Ref)
        now = replace(call, args=args, kwargs=kwargs)
        source = _copied(now)
        # A returned value is the caller's to write.
        if source is None or now.outputs in pinned or not _alike(values, now.outputs, source):
            kept.append(now)
        else:
            same[now.outputs] = source
    return kept


def _copied(call: Recorded) -> Ref | None:
    """Source that ``call`` copies; None if it is no copy."""
    place = _COPIES.get(str(call.facts.symbol))
    return None if place is None else call.args[place]


def _alike(values: Sequence[object], one: Ref, other: Ref) -> bool:
    a, b = values[one.index], values[other.index]
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    if _described(a) != _described(b):
        return False
    sizes = zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=True)
    return all(_certain(m == n) for m, n in sizes) and all(_certain(n != 0) for n in a.shape)


def _certain(condition: Any) -> bool:
    """Test if ``condition`` holds, if need be by a guard; False if it depends on data."""
    known = private.is_known if private.depend_on_data([condition]) else bool
    return known(condition)


def _viewed(values: Sequence[object], call: Recorded) -> Iterator[Ref]:
    """Arguments of ``call`` that share storage with its results."""
    storages = {_storage(values[r.index]) for r in _refs(call.outputs)} - {None}
    return (r for r in _refs((call.args, call.kwargs)) if _storage(values[r.index]) in storages)


def _described(t: torch.Tensor) -> tuple[object, ...]:
    return t.dtype, t.device, t.dim(), t.is_conj(), t.is_neg()


def _refs(tree: object) -> list[Ref]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Ref)]


def _storage(value: object) -> int | None:
    return private.storage_id(value) if isinstance(value, torch.Tensor) else None
