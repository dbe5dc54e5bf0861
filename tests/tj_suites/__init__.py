"""Suites of this repository's own tests: programs and comparisons that no user of tj runs.

``python tests/tj_suites NAME [ARGUMENTS...]`` runs one as a program. What third parties use, to
compare executors and transforms of theirs with eager, is the distribution tj-conformance.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["COMMAND"]

COMMAND = str(Path(__file__).parent)
"""The folder that Python runs: ``[sys.executable, COMMAND, name]`` is a suite in a process."""
