"""The command ``tj report``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tj_core import report
from tj_core.extend import CliCommand, file_to_write
from tj_core.internal import add_target, run_target

if TYPE_CHECKING:
    import argparse

__all__ = ["report_command"]


def report_command() -> CliCommand:
    """Make the command ``report``, which runs a program and writes the page about it."""
    return CliCommand("report", "run a program and write a page about it", _configure, _run)


def _configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="tj-report.html", type=file_to_write,
        help="the file to write",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(args: argparse.Namespace, session: Any) -> int:
    file = report(run_target(args), args.output, title=args.target)
    print(json.dumps({"target": args.target, "file": str(file)}, indent=2) if args.json else file)
    return 0
