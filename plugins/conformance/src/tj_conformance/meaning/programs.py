"""All programs whose meaning is Python's, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tj_conformance.meaning import containers, draws, identity, iterators, numbers

if TYPE_CHECKING:
    from tj_conformance.meaning.scripts import Script

__all__ = ["FAMILIES", "PROGRAMS"]

FAMILIES = (identity, draws, numbers, iterators, containers)

PROGRAMS: Mapping[str, Script] = {
    name: script for family in FAMILIES for name, script in family.programs()
}
