"""The composability table: every row does what it promises, and the page shows the table."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tj_suites.composability import ROWS, Row, Status, run_row

pytestmark = pytest.mark.sampled(10)

PAGE = Path(__file__).resolve().parent.parent / "docs/composability.md"
EVERY = list(itertools.chain.from_iterable(ROWS.values()))


@pytest.mark.sampled(16)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
def test_row(row: Row) -> None:
    report = run_row(row)
    assert not report.problems, report.problems
    assert report.status is row.status, (report.tj_warnings, report.error)
    if row.status is not Status.WORKS:
        said = [*report.tj_warnings, str(report.error)]
        assert row.why
        assert any(row.says in text for text in said), said


def test_names_are_unique() -> None:
    names = [row.name for row in EVERY]
    assert len(set(names)) == len(names)


def lines(row: Row) -> str:
    return f"| {row.feature} | {row.status.value} | {row.why} |"


def page() -> str:
    """The text of ``docs/composability.md``; run this file to write it."""
    parts = [
        "# What works together",
        "",
        "Each row is a program that runs in eager and under `tj.jit`; a test compares results,",
        "gradients, state, output, warnings and random numbers. *works*: compiled, and equal.",
        "*falls back*: equal, and one warning says why tj did not compile it. *raises*: an error",
        "that eager does not raise. None differs silently.",
        "",
    ]
    for title, rows in ROWS.items():
        parts += [f"## {title}", "", "| feature | status | why |", "|---|---|---|"]
        parts += [*map(lines, rows), ""]
    return "\n".join(parts)


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/test_composability.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
