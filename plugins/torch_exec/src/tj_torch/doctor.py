"""The command ``tj doctor``: what tj-torch finds of the PyTorch that is installed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tj_core.extend import CliCommand

if TYPE_CHECKING:
    from tj_core.extend import Session

__all__ = ["doctor_command"]


def doctor_command() -> CliCommand:
    """The record of ``tj doctor``."""
    return CliCommand(
        "doctor", "probe the PyTorch that is installed, and list what is lost", _configure, _run
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also the features that work")


def _run(arguments: argparse.Namespace, session: Session) -> int:
    """Print a table of features; the exit status is 1 if one is lost."""
    from rich.console import Console
    from rich.table import Table

    from tj_torch.capture.dynamo.features import FEATURES
    from tj_torch.capture.dynamo.probing import probe_all
    from tj_torch.torch_private.installation import TESTED, keep, torch_version

    console = Console()
    lost = probe_all()
    keep(session.config.core.cache_dir, lost)
    console.print(f"PyTorch {torch_version()}; tj-torch was tested with {', '.join(TESTED)}")
    table = Table(box=None, pad_edge=False)
    for column in ("feature", "state", "what is right with it", "without it"):
        table.add_column(column, overflow="fold")
    for feature in FEATURES:
        reason = lost.get(feature.name)
        if reason is not None or arguments.all:
            state = "works" if reason is None else f"lost: {reason}"
            table.add_row(feature.name, state, feature.does, feature.without)
    if table.row_count:
        console.print(table)
    if not lost:
        console.print(f"all {len(FEATURES)} features that rest on private names work")
    return int(bool(lost))
