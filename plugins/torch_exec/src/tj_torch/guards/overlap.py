"""Guards on memory overlap: a program per input-aliasing pattern of the arguments in a call.

The pattern says which arguments share memory, and their offsets.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tj_torch.torch_private.ops import base_of, can_be_written, storage_id

__all__ = [
    "PATTERN_LIMIT",
    "Group",
    "dispatch_on_aliasing",
    "unless_held_twice",
]

PATTERN_LIMIT = 8
"""Most input-aliasing patterns that are compiled per program; equals Dynamo's recompile limit."""


class Group(NamedTuple):
    """Arguments that share memory; equal for two calls if one program serves both.

    ``places`` are positions of arguments, ``offsets`` their storage offsets in elements.
    If they are views of one tensor to autograd (or the tensor itself, at position ``base``),
    ``geometry`` is that tensor's shape and strides; None if they only share memory.
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
    """``run``, or a program by ``make`` for the pattern in which a written argument shares memory.

    ``tensors`` are the positions of tensor arguments, ``mutated`` of those that ``run`` writes.
    ``allowed`` has checks of tensors. If one fails, because autograd refuses writes to the tensor,
    ``otherwise`` runs, and raises.

    One program is made per pattern. Beyond `PATTERN_LIMIT` patterns ``otherwise`` runs: for
    instance, a window that moves over a tensor has a new pattern in each call.
    """
    dispatch = _Dispatch(tuple(tensors), frozenset(mutated), make, otherwise)
    count = len(tensors)
    # Of one place, a getter would return no tuple.
    taken = operator.itemgetter(*tensors) if count > 1 else lambda args: [args[i] for i in tensors]
    untyped_storage = torch.Tensor.untyped_storage

    def computation(*args: Any) -> Any:
        for place, is_allowed in allowed:
            if not is_allowed(args[place]):
                return otherwise(*args)
        # A storage has one object in Python as long as that lives.
        if len(set(map(untyped_storage, taken(args)))) < count:
            # Shared memory that nobody writes is no concern of the program.
            storages = [x.untyped_storage()._cdata for x in taken(args)]
            return (dispatch.program(args, storages) or run)(*args)
        return run(*args)

    return computation


@dataclass(slots=True)
class _Dispatch:
    """Programs by input-aliasing pattern.

    ``together`` caches the groups with a written argument, by partition of the arguments.
    """

    tensors: tuple[int, ...]
    mutated: frozenset[int]
    make: Callable[[tuple[Group, ...]], Callable[..., Any]]
    otherwise: Callable[..., Any]
    programs: dict[tuple[Group, ...], Callable[..., Any]] = field(default_factory=dict)
    together: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def program(self, args: Sequence[Any], storages: Sequence[int]) -> Callable[..., Any] | None:
        """Program for ``args`` with these ``storages``; None if no written argument shares memory.

        Runs in each call in which arguments share memory.
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
        """Groups of positions that share storage and include a written one.

        ``partition`` has, per tensor, the position of the first tensor in the same storage.
        """
        groups: dict[int, list[int]] = {}
        for place, first in zip(self.tensors, partition, strict=True):
            groups.setdefault(first, []).append(place)
        found = tuple(
            tuple(group)
            for group in groups.values()
            if len(group) > 1 and not self.mutated.isdisjoint(group)
        )
        # A cache only: `concerned` finds the same again, and a process lives for long.
        if len(self.together) < PATTERN_LIMIT:
            self.together[partition] = found
        return found

    def made(self, found: tuple[Group, ...]) -> Callable[..., Any]:
        """Program for the pattern ``found``; one thread makes it."""
        with self.lock:
            # Another thread may have made it while this one waited for the lock.
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


def unless_held_twice(
    run: Callable[..., Any],
    tensors: Sequence[int],
    parts: Mapping[int, Callable[[torch.Tensor], Iterable[torch.Tensor]]],
    mutated: Sequence[int],
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """``run``, or ``otherwise`` if a wrapper subclass shares written memory with another tensor.

    Inner tensors of wrappers have no base in the program.

    ``parts`` maps the places of tensors of subclasses to their inner tensors. Other arguments are
    those of `dispatch_on_aliasing`.
    """
    changed = frozenset(mutated)

    def computation(*args: Any) -> Any:
        found: dict[int, list[int]] = {}
        held: set[int] = set()
        for place in tensors:
            of = parts.get(place)
            if of is None:
                found.setdefault(storage_id(args[place]), []).append(place)
                continue
            for part in of(args[place]):
                memory = storage_id(part)
                found.setdefault(memory, []).append(place)
                held.add(memory)
        twice = (places for m, places in found.items() if len(places) > 1 and m in held)
        return run(*args) if all(map(changed.isdisjoint, twice)) else otherwise(*args)

    return computation
