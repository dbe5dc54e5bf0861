"""Output of the command line: rich on a terminal, plain text everywhere else."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "file_to_write",
    "print_error",
    "print_json",
    "print_python",
    "print_table",
    "report_problems",
]


def file_to_write(text: str) -> Path:
    """The type of an argument that names a file, which is written after the work is done.

    :raises argparse.ArgumentTypeError: if it cannot be, before the work begins.
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.absolute().parent}")
    return path


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print ``rows`` under ``header``, in columns."""
    if sys.stdout.isatty():
        _print_rich_table(header, rows)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def print_python(text: str) -> None:
    """Print a program; coloured, never wrapped, on a terminal."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    lexed = Syntax("", "python", background_color="default").highlight(text)
    Console().print(lexed, soft_wrap=True, end="")


def print_json(data: object) -> None:
    """Print plain data as JSON."""
    print(json.dumps(data, indent=2))


def print_error(error: object) -> None:
    """Print one message to stderr."""
    print(f"tj: error: {error}", file=sys.stderr)


def report_problems(problems: Sequence[object]) -> int:
    """Print the errors that keep a session from starting, and return the exit status."""
    for problem in problems:
        print_error(problem)
    return 2 if problems else 0


def _print_rich_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=SIMPLE)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a bracket in a path is no markup
    Console().print(table)
