"""Copies that a body can do without: nothing is written there, so they are what they copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from tj_core.tree import leaves, map_tree

from tj_torch.dialect import private
from tj_torch.dialect.recorder import Recorded, Recorder, Ref

__all__ = ["without_copies"]


def without_copies(
    recorder: Recorder, calls: Sequence[Recorded], returned: Iterable[Ref]
) -> list[Recorded]:
    """``calls`` without copies that nobody can tell from what they copy.

    They have the strides of that, and neither they nor views of them are ``returned``, the values
    that leave the body: whoever gets these may write to them, or ask what they share.
    """
    values = recorder.values
    leaving = _leaving(values, calls, returned)
    same: dict[Ref, Ref] = {}
    kept = []
    for call in calls:
        now = replace(
            call,
            args=map_tree(lambda r: same.get(r, r), call.args, Ref),
            kwargs=map_tree(lambda r: same.get(r, r), call.kwargs, Ref),
        )
        copied = _copied(values, now)
        if copied is None or call.outputs in leaving:
            kept.append(now)
        else:
            same[call.outputs] = copied
    return kept


def _leaving(
    values: Sequence[object], calls: Sequence[Recorded], returned: Iterable[Ref]
) -> set[Ref]:
    """The values that leave the body, and those they are views of."""
    leaving = set(returned)
    for call in reversed(calls):
        storages = {_storage(values[r.index]) for r in _refs(call.outputs) if r in leaving}
        given = _refs((call.args, call.kwargs))
        leaving |= {r for r in given if _storage(values[r.index]) in storages - {None}}
    return leaving


def _copied(values: Sequence[object], call: Recorded) -> Ref | None:
    """What the result of ``call`` is a copy of, with the same metadata; None if of nothing."""
    name = str(call.facts.symbol)
    if name == "aten.clone.default":
        source = call.args[0]
    elif name == "aten.copy.default":
        source = call.args[1]
    else:
        return None
    made, given = values[call.outputs.index], values[source.index]
    assert isinstance(made, torch.Tensor) and isinstance(given, torch.Tensor)
    alike = _described(made) == _described(given) and 0 not in made.shape
    return source if alike else None


def _described(t: torch.Tensor) -> tuple[object, ...]:
    return t.dtype, t.device, t.shape, t.stride(), t.is_conj(), t.is_neg()


def _refs(tree: object) -> list[Ref]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Ref)]


def _storage(value: object) -> int | None:
    return private.storage_id(value) if isinstance(value, torch.Tensor) else None
