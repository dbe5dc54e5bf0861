"""All programs of subclasses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_suites.subclasses.writes import CASES

if TYPE_CHECKING:
    from tj_conformance.oracle.case import Cases

__all__ = ["PROGRAMS"]

PROGRAMS: Cases = CASES
