"""All families of programs that run as installed, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from tj_conformance.databases.known import DTYPES
from tj_conformance.installed import programs
from tj_conformance.installed.databases import module_db, op_db
from tj_conformance.installed.subject import Subject
from tj_conformance.programs.cases import Case, cases_in

__all__ = ["FAMILIES", "subjects_of", "tables"]

FAMILIES: Mapping[str, Callable[[], Iterable[Subject]]] = {
    **{f"op_db:{name}": functools.partial(op_db, getattr(torch, name)) for name in DTYPES},
    "module_db": module_db,
    "aliasing": lambda: programs.aliasing(tables()),
    "generated": programs.generated,
    "found": programs.found,
    "own backwards": programs.own_backwards,
    "subclasses": programs.subclasses,
    "autocast": programs.autocast,
    "models": programs.models,
}
"""What makes the programs of each family."""


ALIASING = Path("plugins/torch_exec/tests/functionalize/aliasing")
"""Where the tables of programs that alias stand, below the folder of all distributions."""


def tables(root: Path = Path()) -> list[tuple[Case, str]]:
    """Programs that alias with the kinds of their tensors, from the test files below ``root``."""
    folder = root / ALIASING
    return cases_in(folder, but=("test_functional.py", "test_scoreboard.py"))


def subjects_of(name: str) -> Iterable[Subject]:
    """The programs of the family ``name``.

    :raises ValueError: if there is no such family.
    """
    if name not in FAMILIES:
        raise ValueError(f"no family {name!r}; there are {', '.join(FAMILIES)}")
    return FAMILIES[name]()
