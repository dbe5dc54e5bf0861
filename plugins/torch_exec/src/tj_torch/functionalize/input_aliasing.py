"""Dispatch on the input-aliasing pattern: which arguments share memory, and how."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tj_torch.runtime.subclasses import dense_tensors, is_wrapper
from tj_torch.torch_private.ops import base_of, can_be_written, storage_id

__all__ = [
    "PATTERN_LIMIT",
    "Group",
    "dispatch_on_aliasing",
    "given_bases",
    "once",
    "unless_held_twice",
]

PATTERN_LIMIT = 8
"""So many input-aliasing patterns of a program have programs of their own; as many as Dynamo
compiles a function again."""


class Group(NamedTuple):
    """Arguments that share memory, and how: the same for two calls if one program serves both.

    ``places`` are those of the arguments, ``offsets`` what they start at in their storage.
    Where autograd knows them as views of one tensor (or it itself, at place ``base``),
    ``geometry`` are its shape and strides; None where nothing but memory is common to them.
    """

    places: tuple[int, ...]
    offsets: tuple[int, ...]
    base: int | None = None
    geometry: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def dispatch_on_aliasing(
    run: Callable[..., Any],
    tensors: Sequence[int],
    mutated: Sequence[int],
    make: Callable[[tuple[Group, ...]], Callable[..., Any]],
    otherwise: Callable[..., Any],
    allowed: Sequence[tuple[int, Callable[[torch.Tensor], bool]]] = (),
) -> Callable[..., Any]:
    """``run``, or where a written argument shares memory what ``make`` makes for how it does.

    ``tensors`` are the places of the arguments that are tensors, ``mutated`` those of the ones
    that ``run`` writes. If a tensor at a place is not ``allowed``, since autograd refuses what
    is done to it, ``otherwise`` runs, which raises.

    Programs are made once for each pattern. After `PATTERN_LIMIT` of them, ``otherwise`` runs
    calls of another: a window that moves over a tensor has a new one in each call.
    """
    dispatch = _Dispatch(tuple(tensors), frozenset(mutated), make, otherwise)

    def computation(*args: Any) -> Any:
        for place, is_allowed in allowed:
            if not is_allowed(args[place]):
                return otherwise(*args)
        storages = [args[place].untyped_storage()._cdata for place in tensors]
        if len(set(storages)) < len(storages):
            return (dispatch.program(args, storages) or run)(*args)
        return run(*args)

    return computation


@dataclass(slots=True)
class _Dispatch:
    """The programs for the input-aliasing patterns of a program."""

    tensors: tuple[int, ...]
    mutated: frozenset[int]
    make: Callable[[tuple[Group, ...]], Callable[..., Any]]
    otherwise: Callable[..., Any]
    programs: dict[tuple[Group, ...], Callable[..., Any]] = field(default_factory=dict)
    together: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def program(self, args: Sequence[Any], storages: Sequence[int]) -> Callable[..., Any] | None:
        """What runs for ``args``, whose tensors lie in ``storages``; None if none written shares.

        This is on the way of each call that shares memory.
        """
        first: dict[int, int] = {}
        partition = tuple(map(first.setdefault, storages, self.tensors))
        concerned = self.together.get(partition)
        if concerned is None:
            concerned = self.concerned(partition)
        if not concerned:
            return None
        found = tuple([_group(places, [args[place] for place in places]) for places in concerned])
        return self.programs.get(found) or self.made(found)

    def concerned(self, partition: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The groups of places with a written one, of tensors each of which lies in the storage of
        the one at the place that ``partition`` has for it."""
        groups: dict[int, list[int]] = {}
        for place, first in zip(self.tensors, partition, strict=True):
            groups.setdefault(first, []).append(place)
        found = tuple(
            tuple(group)
            for group in groups.values()
            if len(group) > 1 and not self.mutated.isdisjoint(group)
        )
        if len(self.together) < PATTERN_LIMIT:
            self.together[partition] = found
        return found

    def made(self, found: tuple[Group, ...]) -> Callable[..., Any]:
        """The program for the pattern ``found``, made now by the thread that comes first."""
        with self.lock:
            program = self.programs.get(found)
            if program is None and len(self.programs) < PATTERN_LIMIT:
                program = self.programs[found] = self.make(found)
        return program or self.otherwise


def _group(places: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> Group:
    offsets = tuple([int(t.storage_offset()) for t in tensors])
    first = tensors[0]
    base = base_of(first)
    at = None
    for place, t in zip(places, tensors, strict=True):
        if t is base:
            at = place
        elif t._base is not base:
            return Group(places, offsets)
    if (
        base.storage_offset()
        or base.dtype is not first.dtype
        or base.requires_grad is not first.requires_grad
        or (base.requires_grad and not all(map(can_be_written, tensors)))
    ):
        return Group(places, offsets)
    return Group(places, offsets, at, (tuple(base.shape), base.stride()))


def given_bases(
    run: Callable[..., Any], groups: Sequence[Group], lengths: Sequence[int]
) -> Callable[..., Any]:
    """``run`` with the bases that are no arguments after the arguments.

    Of groups that have but memory in common, those are the ``lengths`` first elements of it.
    """
    wanted = [(g, n) for g, n in zip(groups, lengths, strict=True) if g.base is None]
    if not wanted:
        return run

    def computation(*args: Any) -> Any:
        bases = [_base(args[group.places[0]], group, length) for group, length in wanted]
        return run(*args, *bases)

    return computation


def _base(first: torch.Tensor, group: Group, length: int) -> torch.Tensor:
    return base_of(first) if group.geometry else first.detach().as_strided((length,), (1,), 0)


def unless_held_twice(
    run: Callable[..., Any],
    tensors: Sequence[int],
    mutated: Sequence[int],
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """``run``; or ``otherwise``, if a tensor of a subclass holds memory that is written and also
    that of another tensor. No base is known for what it holds.

    Arguments are as those of `dispatch_on_aliasing`.
    """
    changed = frozenset(mutated)

    def computation(*args: Any) -> Any:
        found: dict[int, list[int]] = {}
        held: set[int] = set()
        for place in tensors:
            wrapper = is_wrapper(args[place])
            for part in dense_tensors(args[place]):
                memory = storage_id(part)
                found.setdefault(memory, []).append(place)
                if wrapper:
                    held.add(memory)
        twice = (places for m, places in found.items() if len(places) > 1 and m in held)
        return run(*args) if all(map(changed.isdisjoint, twice)) else otherwise(*args)

    return computation


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
