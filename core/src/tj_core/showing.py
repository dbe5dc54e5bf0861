"""Tables and programs for people: as text in columns, and as HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["aligned", "folded_html", "one_line", "table_html", "text_html"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def one_line(text: object) -> str:
    """A text without line ends, and with one space between words."""
    return " ".join(str(text).split())


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table, its cells aligned to the left and escaped."""
    head = "".join(f'<th style="text-align:left">{html.escape(cell)}</th>' for cell in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_html(text: str, colours: Mapping[str, str] | None = None) -> str:
    """A text in a fixed font, escaped, with its line ends.

    ``colours`` are backgrounds of lines, by their first character.
    """
    lines = (_line(line, (colours or {}).get(line[:1])) for line in text.split("\n"))
    inner = "\n".join(lines)
    # Notebooks have a style of their own for `pre`, with a proportional font.
    return f'<pre style="font-family:monospace">{inner}</pre>'


def folded_html(title: str, inner: str) -> str:
    """The HTML ``inner`` under a title; a click on the title shows it."""
    return f"<details><summary>{html.escape(title)}</summary>{inner}</details>"


def _line(text: str, colour: str | None) -> str:
    escaped = html.escape(text)
    return f'<span style="background:{colour}">{escaped}</span>' if colour else escaped


def _cell(text: str) -> str:
    return f'<td style="text-align:left;white-space:pre-wrap">{html.escape(text)}</td>'
