"""All families of programs that run as installed, by name."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tj_conformance.databases.known import DTYPES
from tj_conformance.databases.tally import ALL, Part
from tj_conformance.installed import programs
from tj_conformance.installed.databases import module_db, op_db
from tj_conformance.programs.assigning import assigning_programs
from tj_conformance.programs.checkpoints import checkpointed_programs
from tj_conformance.programs.modes import moded_programs
from tj_conformance.programs.raising import raising_programs

if TYPE_CHECKING:
    from tj_conformance.installed.subject import Subject

__all__ = ["FAMILIES", "SEEDS", "SEEN", "Family", "sample", "subjects_of", "whole"]

SEEDS = range(9000, 9040)
"""Seeds of made-up programs: 250 for each, or 50 of those that differentiate or change."""


@dataclass(frozen=True, slots=True)
class Family:
    """Maker of programs: ``make`` yields all, ``chosen`` a sample that a number selects.

    The default run of the tests takes ``few``, or none, the long run all, in ``parts``.
    """

    make: Callable[[Part], Iterable[Subject]]
    few: int
    parts: int = 1
    chosen: Callable[[int, int], Iterable[Subject]] | None = None


def whole(make: Callable[[], Iterable[Subject]], few: int, parts: int = 1) -> Family:
    """A family of programs that ``make`` makes all at once."""
    return Family(lambda part: part.of(list(make())), few, parts)


def _seen(name: str) -> Iterator[Subject]:
    return programs.seen(name, SEEN[name]())


def _seeded(make: Callable[..., Iterator[Subject]], few: int) -> Family:
    """Programs that ``make`` makes from a seed and a number; a sample has seeds of its own."""

    def part_of(part: Part) -> Iterator[Subject]:
        for seed in part.of(list(SEEDS)):
            yield from make(seed)

    def chosen(count: int, number: int) -> Iterator[Subject]:
        return make(SEEDS.start - 1 - number, count)

    return Family(part_of, few, len(SEEDS), chosen)


SEEN = {
    "raising": raising_programs,
    "assigning": assigning_programs,
    "modes": moded_programs,
    "checkpoints": checkpointed_programs,
}
"""Families of programs of which a caller sees more than results."""

FAMILIES: Mapping[str, Family] = {
    **{
        f"op_db:{name}": whole(
            functools.partial(op_db, getattr(torch, name)), 3 if name == "float32" else 2, 16
        )
        for name in DTYPES
    },
    "module_db": whole(module_db, 4, 6),
    "generated": _seeded(programs.generated, 8),
    **{
        name: whole(functools.partial(_seen, name), 1 if name == "raising" else 0, 16)
        for name in SEEN
    },
    "meaning": whole(programs.meaning, 2, 16),
    "orders": _seeded(programs.orders, 4),
    "ways": _seeded(programs.ways, 0),
    "states": _seeded(programs.states, 0),
    "data": _seeded(programs.data, 0),
    "dtypes": _seeded(programs.dtypes, 1),
    "found": whole(programs.found, 6),
    "own_backwards": whole(programs.own_backwards, 2, 16),
    "models": whole(programs.models, 1, 5),
}
"""Families by name."""


def subjects_of(
    name: str, part: Part = ALL, families: Mapping[str, Family] = FAMILIES
) -> Iterable[Subject]:
    """The programs of the family ``name``, or a part of them.

    :raises ValueError: if there is no such family.
    """
    if name not in families:
        raise ValueError(f"no family {name!r}; there are {', '.join(families)}")
    return families[name].make(part)


def sample(name: str, number: int = 0, families: Mapping[str, Family] = FAMILIES) -> list[Subject]:
    """Share of a family in the default run: hashes choose it, differently for each ``number``."""
    family = families[name]
    if family.chosen is not None:
        return list(family.chosen(family.few, number))
    found = sorted(family.make(ALL), key=lambda s: zlib.crc32(f"{number} {s.id}".encode()))
    return found[: family.few]
