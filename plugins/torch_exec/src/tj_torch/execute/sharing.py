"""Which arguments share memory: the functional program of others is not for them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tj_torch.dialect.private import can_be_written

__all__ = ["WAYS", "Group", "given_bases", "groups", "once", "per_pattern", "unless_shared"]

WAYS = 8
"""For so many ways of sharing memory a program has programs of their own; as many as Dynamo
compiles a function again."""


@dataclass(frozen=True, slots=True)
class Group:
    """Arguments that share memory, and how: the same for two calls if one program serves both.

    ``places`` are those of the arguments, ``offsets`` what they start at in their storage.
    Where autograd knows them as views of one tensor (or it itself, at place ``base``),
    ``geometry`` are its shape and strides; None where nothing but memory is common to them.
    """

    places: tuple[int, ...]
    offsets: tuple[int, ...]
    base: int | None = None
    geometry: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def unless_shared(
    run: Callable[..., Any],
    tensors: Sequence[int],
    written: Sequence[int],
    shared: Callable[..., Any],
    refused: Callable[..., Any],
    visible: Sequence[int] = (),
) -> Callable[..., Any]:
    """``run``, or ``shared`` where a written argument shares storage with another.

    ``tensors`` are the places of the arguments that are tensors, ``written`` those of the ones
    that ``run`` writes, ``visible`` those of which autograd sees that: if it refuses that of one,
    ``refused`` runs, which raises.
    """
    places = {place: i for i, place in enumerate(tensors)}
    indices = [places[place] for place in written]

    def computation(*args: Any) -> Any:
        for place in visible:
            if not can_be_written(args[place]):
                return refused(*args)
        storages = [args[place].untyped_storage()._cdata for place in tensors]
        if len(set(storages)) < len(storages):
            counts = Counter(storages)
            if any(counts[storages[i]] > 1 for i in indices):
                return shared(*args)
        return run(*args)

    return computation


def per_pattern(
    tensors: Sequence[int],
    written: Sequence[int],
    make: Callable[[tuple[Group, ...]], Callable[..., Any]],
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """What ``make`` makes for the way in which arguments share memory, made once for each.

    After `WAYS` of them, ``otherwise`` runs what comes in another: a window that moves over a
    tensor has a new one in each call.
    """
    programs: dict[tuple[Group, ...], Callable[..., Any]] = {}
    lock = threading.Lock()

    def computation(*args: Any) -> Any:
        found = groups(args, tensors, written)
        program = programs.get(found)
        if program is None:
            with lock:
                program = programs.get(found)
                if program is None and len(programs) < WAYS:
                    program = programs[found] = make(found)
        return (program or otherwise)(*args)

    return computation


def groups(
    args: Sequence[Any], tensors: Sequence[int], written: Sequence[int]
) -> tuple[Group, ...]:
    """The arguments that share memory with a written one."""
    places: dict[int, list[int]] = {}
    for place in tensors:
        places.setdefault(args[place].untyped_storage()._cdata, []).append(place)
    return tuple(
        _group(tuple(group), [args[place] for place in group])
        for group in places.values()
        if len(group) > 1 and not set(written).isdisjoint(group)
    )


def _group(places: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> Group:
    offsets = tuple([int(t.storage_offset()) for t in tensors])
    first = tensors[0]
    base = _base_of(first)
    if (
        any(_base_of(t) is not base for t in tensors)
        or base.storage_offset()
        or base.dtype is not first.dtype
        or base.requires_grad is not first.requires_grad
        or (base.requires_grad and not all(map(can_be_written, tensors)))
    ):
        return Group(places, offsets)
    at = next((i for i, t in zip(places, tensors, strict=True) if t is base), None)
    return Group(places, offsets, at, (tuple(base.shape), tuple(base.stride())))


def _base_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def given_bases(
    run: Callable[..., Any], groups: Sequence[Group], lengths: Sequence[int]
) -> Callable[..., Any]:
    """``run`` with the bases that are no arguments after the arguments.

    Of groups that have but memory in common, those are the ``lengths`` first elements of it.
    """
    wanted = [(g, n) for g, n in zip(groups, lengths, strict=True) if g.base is None]

    def computation(*args: Any) -> Any:
        bases = [_base(args[group.places[0]], group, length) for group, length in wanted]
        return run(*args, *bases)

    return computation


def _base(first: torch.Tensor, group: Group, length: int) -> torch.Tensor:
    return _base_of(first) if group.geometry else first.detach().as_strided((length,), (1,), 0)


def once(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """What ``make`` makes, made when it is first called, by one thread."""
    made: list[Callable[..., Any]] = []
    lock = threading.Lock()

    def computation(*args: Any) -> Any:
        with lock:
            if not made:
                made.append(make())
        return made[0](*args)

    return computation
