"""The command ``tj doctor``: what tj finds of the PyTorch that is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tj_core.extend import CliCommand

if TYPE_CHECKING:
    import argparse

    from tj_core.extend import Session

    from tj_torch.torch_private.tables import Table

__all__ = ["doctor_command"]


def doctor_command() -> CliCommand:
    """The record of ``tj doctor``."""
    return CliCommand(
        "doctor", "probe the PyTorch that is installed, and list what is lost", _configure, _run
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also the features that work")
    parser.add_argument("--names", action="store_true", help="the private names, and their uses")


def _run(arguments: argparse.Namespace, session: Session) -> int:
    """Print a table of features, and one of names; the exit status is 1 if a feature is lost."""
    from rich.console import Console

    from tj_torch.installation import TESTED, torch_version
    from tj_torch.torch_private.tables import PRIVATE_NAMES

    console = Console()
    console.print(f"PyTorch {torch_version()}; tj was tested with {', '.join(TESTED)}")
    some = False
    for table in [rule.value for rule in session.tables[PRIVATE_NAMES]]:
        lost = table.probe()
        some = some or bool(lost)
        table.probed.keep(session.config.core.cache_dir, lost)
        _show_features(console, table, lost, arguments.all)
        if arguments.names:
            _show_names(console, table, lost)
    return int(some)


def _show_features(console: Any, table: Table, lost: dict[str, str], all_of_them: bool) -> None:
    rows = []
    for feature in table.features:
        reason = lost.get(feature.name)
        if reason is not None or all_of_them:
            state = "works" if reason is None else f"lost: {reason}"
            rows.append((feature.name, state, feature.does, feature.without))
    _show(console, ("feature", "state", "what is so with it", "without it"), rows)
    if not lost:
        count = len(table.features)
        console.print(f"{table.owner}: all {count} features that rest on private names work")


def _show_names(console: Any, table: Table, lost: dict[str, str]) -> None:
    console.print(f"\nprivate names of PyTorch that {table.owner} uses:", highlight=False)
    for name in (*table.names.values(), *table.used()):
        features = [table.feature(feature) for feature in name.features]
        without = "; ".join(f"{f.name}: {f.without}" for f in features)
        lines = [
            name.path,
            f"    used to {name.use}",
            *(f"    renamed since {version}: {path}" for version, path in name.moved),
            f"    {'lost' if any(f in lost for f in name.features) else 'without it'}: {without}",
        ]
        console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)


def _show(console: Any, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table as Grid

    if not rows:
        return
    grid = Grid(box=None, pad_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
