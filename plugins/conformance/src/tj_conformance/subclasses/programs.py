"""All programs of subclasses."""

from __future__ import annotations

from tj_conformance.oracle.case import Cases
from tj_conformance.subclasses.writes import CASES

__all__ = ["PROGRAMS"]

PROGRAMS: Cases = CASES
