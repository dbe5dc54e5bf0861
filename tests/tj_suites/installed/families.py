"""Families of programs that run as installed: tj-conformance's, and those of the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tj_conformance.installed import families
from tj_conformance.installed.families import Family, whole
from tj_conformance.programs.cases import Case, cases_in

from tj_suites.installed import programs

if TYPE_CHECKING:
    from tj_conformance.installed.subject import Subject

__all__ = ["FAMILIES"]

ROOT = Path(__file__).resolve().parents[3]
ALIASING = ROOT / "plugins/torch_exec/tests/functionalize/aliasing"
"""Folder with the tables of programs that alias."""


def _aliasing() -> Iterator[Subject]:
    return programs.aliasing(_tables())


def _tables() -> list[tuple[Case, str]]:
    """Programs that alias with the kinds of their tensors, from the test files."""
    return cases_in(ALIASING, but=("test_functional.py", "test_scoreboard.py"))


FAMILIES: Mapping[str, Family] = {
    **families.FAMILIES,
    "aliasing": whole(_aliasing, 4, 16),
    "subclasses": whole(programs.subclasses, 4),
    "autocast": whole(programs.autocast, 4, 6),
    "packages": whole(programs.packages, 4, 8),
}
"""Families by name."""
