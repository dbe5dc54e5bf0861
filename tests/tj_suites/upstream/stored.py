"""Reports in a file, to look at failures and to run them again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tj_suites.upstream.compare import Report, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from tj_suites.upstream.kinds import Mode

__all__ = ["failed", "read", "write"]


def write(path: Path, reports: Iterable[Report]) -> None:
    """Store every test with its outcomes."""
    path.write_text(json.dumps([report.plain() for report in reports], indent=1))


def read(path: Path) -> list[Report]:
    """Outcomes that `write` has stored."""
    return [Report.read(data) for data in json.loads(path.read_text())]


def failed(path: Path) -> dict[tuple[str, Mode], tuple[str, ...]]:
    """The tests that failed with tj alone, by file and mode."""
    found = {(r.file, r.mode): tuple(o.test for o in r.tests(Verdict.ALONE)) for r in read(path)}
    return {job: tests for job, tests in found.items() if tests}
