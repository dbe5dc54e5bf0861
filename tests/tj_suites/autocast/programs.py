"""All programs under autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_suites.autocast.edges import CASES

if TYPE_CHECKING:
    from tj_conformance.oracle.case import Cases

__all__ = ["PROGRAMS"]

PROGRAMS: Cases = CASES
"""Programs by name."""
