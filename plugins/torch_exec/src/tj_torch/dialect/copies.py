"""Copies that a body can do without: nothing is written there, so they are what they copy."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from tj_core.tree import leaves, map_tree

from tj_torch.dialect import private
from tj_torch.dialect.body import live_calls
from tj_torch.dialect.recorder import Recorded, Recorder, Ref

__all__ = ["without_copies"]


def without_copies(
    recorder: Recorder, calls: Sequence[Recorded], returned: Iterable[Ref]
) -> list[Recorded]:
    """``calls`` without copies that nobody can tell from what they copy.

    They have the strides of that, and neither they nor views of them are ``returned``, the values
    that leave the body: whoever gets these may write to them, or ask what they share. A copy that
    is viewed stays: what a view is to autograd depends on what it is of.
    """
    values, returned = recorder.values, frozenset(returned)
    calls = _without(values, calls, _leaving(values, calls, returned), _written_over)
    calls = live_calls(calls, returned, _refs)
    viewed = {r for call in calls for r in _viewed(values, call)}
    return _without(values, calls, viewed | returned, _cloned)


def _without(
    values: Sequence[object],
    calls: Sequence[Recorded],
    staying: Container[Ref],
    copied: Callable[[Recorded], Ref | None],
) -> list[Recorded]:
    """``calls`` without those whose result has the metadata of what ``copied`` says it copies."""
    same: dict[Ref, Ref] = {}
    kept = []
    for call in calls:
        args, kwargs = map_tree(lambda r: same.get(r, r), (call.args, call.kwargs), Ref)
        now = replace(call, args=args, kwargs=kwargs)
        source = copied(now)
        if source is None or now.outputs in staying or not _alike(values, now.outputs, source):
            kept.append(now)
        else:
            same[now.outputs] = source
    return kept


def _cloned(call: Recorded) -> Ref | None:
    return call.args[0] if str(call.facts.symbol) == "aten.clone.default" else None


def _written_over(call: Recorded) -> Ref | None:
    return call.args[1] if str(call.facts.symbol) == "aten.copy.default" else None


def _alike(values: Sequence[object], one: Ref, other: Ref) -> bool:
    a, b = values[one.index], values[other.index]
    assert isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return _described(a) == _described(b) and 0 not in a.shape


def _viewed(values: Sequence[object], call: Recorded) -> Iterator[Ref]:
    """The arguments of ``call`` that its results are views of."""
    storages = {_storage(values[r.index]) for r in _refs(call.outputs)} - {None}
    return (r for r in _refs((call.args, call.kwargs)) if _storage(values[r.index]) in storages)


def _leaving(
    values: Sequence[object], calls: Sequence[Recorded], returned: Iterable[Ref]
) -> set[Ref]:
    """The values that leave the body, and those they are views of."""
    leaving = set(returned)
    for call in reversed(calls):
        if not leaving.isdisjoint(_refs(call.outputs)):
            leaving.update(_viewed(values, call))
    return leaving


def _described(t: torch.Tensor) -> tuple[object, ...]:
    return t.dtype, t.device, t.shape, t.stride(), t.is_conj(), t.is_neg()


def _refs(tree: object) -> list[Ref]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Ref)]


def _storage(value: object) -> int | None:
    return private.storage_id(value) if isinstance(value, torch.Tensor) else None
