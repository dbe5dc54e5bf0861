"""Other functions that run calls of an operation where they stand as they are: table ``runs_as``.

A rule is a function from a call to a function with the operation's parameters and results, or None
for the operation's own. It is asked when a program is generated, of calls that a fallback executor
runs; the program shows the operation.
"""

from __future__ import annotations

__all__ = ["RUNS_AS"]

RUNS_AS = "runs_as"
"""Name of the rule table."""
