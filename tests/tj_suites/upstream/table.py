"""Figures of reports, one row for each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tj_suites.upstream.compare import Report, Verdict
from tj_suites.upstream.kinds import EXACT, INSTALLED
from tj_suites.upstream.known import KNOWN, Known, listed

__all__ = ["HEAD", "table"]

HEAD = ("", "run", "passed", "failed with tj alone", "listed", "failed everywhere", "skipped")
"""Titles of the columns; listed tests are not among those that fail with tj alone."""


def table(reports: Iterable[Report], known: Iterable[Known] = KNOWN) -> Iterator[str]:
    """The rows, the last one of all files together."""
    yield _row(HEAD)
    yield f"|{'---|' * len(HEAD)}"
    total: Counter[str] = Counter()
    for report in reports:
        figures = _figures(report, listed(report, known))
        total += figures
        yield _row((_name(report), *(figures[name] for name in HEAD[1:])))
    yield _row(("together", *(total[name] for name in HEAD[1:])))


def _name(report: Report) -> str:
    modes = (EXACT | INSTALLED).get(report.file, ())
    return f"`{report.file}`" + (f", {report.mode.value}" if len(modes) > 1 else "")


def _figures(report: Report, names: frozenset[str]) -> Counter[str]:
    figures = Counter({v.value: len(report.tests(v)) for v in Verdict})
    figures["run"] = figures.total() - figures["skipped"]
    figures["listed"] = sum(o.test in names for o in report.tests(Verdict.ALONE))
    figures[Verdict.ALONE.value] -= figures["listed"]
    return figures


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
