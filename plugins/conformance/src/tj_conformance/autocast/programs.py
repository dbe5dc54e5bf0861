"""All programs under autocast."""

from __future__ import annotations

from tj_conformance.autocast.case import Cases
from tj_conformance.autocast.edges import CASES

__all__ = ["PROGRAMS"]

PROGRAMS: Cases = CASES
"""By name."""
