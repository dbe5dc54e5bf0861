"""The command ``tj report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core import report
from tj_core.extend import CliCommand
from tj_core.internal import add_target, run_target

if TYPE_CHECKING:
    import argparse

__all__ = ["report_command"]


def report_command() -> CliCommand:
    """Make the command ``report``, which runs a program and writes the page about it."""
    return CliCommand("report", "run a program and write a page about it", _configure, _run)


def _configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.set_defaults(json=False)  # what the program prints stays on stdout
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="tj-report.html", help="the file to write"
    )


def _run(args: argparse.Namespace, session: Any) -> int:
    print(report(run_target(args), args.output, title=args.target))
    return 0
