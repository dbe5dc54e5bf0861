"""The report as one HTML page without scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tj_conformance.executor.report import Cell, Report

__all__ = ["page"]

STYLE = """
body { font: 15px/1.5 sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }
table { border-collapse: collapse } td, th { padding: .2em .7em; border: 1px solid #ccc }
td { text-align: right } td:first-child { text-align: left }
.right { background: #dfd } .wrong { background: #fcc } .none { color: #999 }
pre { background: #f4f4f4; padding: 1em; overflow: auto }
"""


def page(report: Report) -> str:
    """The page: the capability matrix, declines, and findings with their programs."""
    head = "".join(f"<th>{escape(d)}</th>" for d in ("operation", *report.dtypes))
    rows = "\n".join(
        f"<tr><td>{escape(name)}</td>{''.join(_cell(cells.get(d)) for d in report.dtypes)}</tr>"
        for name, cells in report.rows()
    )
    return "\n".join([
        "<!doctype html>",
        f"<html lang='en'><meta charset='utf-8'><title>{escape(report.executor)}</title>",
        f"<style>{STYLE}</style>",
        f"<h1>{escape(report.owner)}</h1><p>{escape(report.summary)}</p>",
        f"<table><tr>{head}</tr>\n{rows}</table>",
        *_list("Findings", [_finding(f) for f in report.findings]),
        *_list("Declined", [escape(text) for text in _declined(report)]),
        *_list("Claims that no sample reaches", [escape(key) for key in report.untried]),
        *_list("Operations that there was no time for", [escape(name) for name in report.left]),
        *_list("Tolerances", [escape(text) for text in report.tolerances]),
        "</html>",
        "",
    ])  # fmt: skip


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    kind = "wrong" if cell.findings else "right" if cell.takes else "none"
    return f"<td class='{kind}'>{escape(cell.text)}</td>"


def _finding(finding: object) -> str:
    first, _, rest = str(finding).partition("\n")
    return f"<p><b>{escape(first)}</b></p><pre>{escape(rest)}</pre>"


def _declined(report: Report) -> list[str]:
    return [
        f"{c.operation}, {c.dtype}: {count} because {reason}"
        for c in report.shown
        for reason, count in c.declined.most_common()
    ]


def _list(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    return [f"<h2>{title}</h2>", "<ul>", *(f"<li>{item}</li>" for item in items), "</ul>"]
