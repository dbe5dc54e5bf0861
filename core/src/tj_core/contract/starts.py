"""Table ``starts``: work that a call starts and that goes on meanwhile, such as a collective."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STARTS", "Started"]

STARTS = "starts"
"""Name of the rule table: a rule is a function from a call to a `Started`, or None."""


@dataclass(frozen=True, slots=True)
class Started:
    """The work that a call starts; the first call that reads its result waits for it.

    ``operation`` and ``group`` are names, ``size`` is in bytes, None if it is not known.
    """

    operation: str
    group: str
    size: int | None = None
