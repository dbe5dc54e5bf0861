"""The report in a terminal: the capability matrix, declines, findings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from tj_conformance.executor.report import Cell, Report

__all__ = ["show"]

SHORT = {"complex64": "c64", "complex128": "c128", "bfloat16": "bf16", "bool": "bool"}


def show(report: Report, console: Console) -> None:
    """Print the report."""
    console.print(_matrix(report))
    for line in (*_declines(report), *_notes(report)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for finding in report.findings:
        console.print(
            f"\n[bold red]finding[/] {escape(str(finding))}", highlight=False, soft_wrap=True
        )
    style = "bold red" if report.findings else "bold green"
    console.print(f"[{style}]{escape(report.summary)}[/]", highlight=False, soft_wrap=True)


def _matrix(report: Report) -> Table:
    """Samples taken of those there are, for each operation and data type."""
    table = Table("operation", title=f"{report.executor}: samples taken", title_justify="left")
    for dtype in report.dtypes:
        table.add_column(_short(dtype), justify="right")
    for name, cells in report.rows():
        table.add_row(name, *(_cell(cells.get(dtype)) for dtype in report.dtypes))
    return table


def _short(dtype: str) -> str:
    plain = dtype.replace("uint", "u").replace("int", "i").replace("float", "f")
    return SHORT.get(dtype, plain)


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.findings:
        return f"[red]{cell.text}[/]"
    return f"[green]{cell.text}[/]" if cell.takes else f"[dim]{cell.text}[/]"


def _declines(report: Report) -> list[str]:
    """One line for each operation and reason, the most frequent first."""
    found: dict[str, Counter[str]] = {}
    for cell in report.shown:
        if cell.declined:
            found.setdefault(cell.operation, Counter()).update(cell.declined)
    return [
        f"{name}: declined {count} because {reason}"
        for name, reasons in found.items()
        for reason, count in reasons.most_common()
    ]


def _notes(report: Report) -> list[str]:
    others = [f"{c.operation}, {c.dtype}: {text}" for c in report.shown for text in c.others]
    rounded = [
        f"{c.operation}, {c.dtype}, {len(c.rounding)} times: {c.rounding[0]}"
        for c in report.shown
        if c.rounding
    ]
    return [
        *(f"no sample reaches the claim of {key}" for key in report.untried),
        *(
            [f"no time for {len(report.left)} operations: {', '.join(report.left)}"]
            * bool(report.left)
        ),
        *(f"tolerance of {text}" for text in report.tolerances),
        *(f"differs without the executor, too: {text}" for text in others),
        *(f"rounded as far as eager does: {text}" for text in rounded),
    ]
