"""Functions that run calls in place of an operation which the program still shows: ``runs_as``.

A rule of the table is a function from a call to a function with the operation's parameters and
results, or None for the operation's own. It is asked when a program is generated, for calls that a
fallback executor runs.
"""

from __future__ import annotations

__all__ = ["RUNS_AS"]

RUNS_AS = "runs_as"
"""Name of the rule table."""
