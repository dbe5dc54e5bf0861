"""``tj new-plugin NAME --kind KIND``: write the package of a plugin, with tests that pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tj_core.extend import CliCommand

from tj_torch.new_plugin.writing import KINDS, write_plugin

if TYPE_CHECKING:
    import argparse

    from tj_core.extend import Session

__all__ = ["new_plugin_command"]


def new_plugin_command() -> CliCommand:
    """Make the command ``tj new-plugin``."""
    return CliCommand("new-plugin", "write the package of a new plugin", _configure, _run)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the plugin: acme, my_kernels")
    kinds = "; ".join(f"{name}: {kind.summary}" for name, kind in KINDS.items())
    parser.add_argument("--kind", choices=list(KINDS), default="executor", help=kinds)
    parser.add_argument(
        "--into", metavar="FOLDER", type=Path, default=Path(), help="where its folder goes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: argparse.Namespace, session: Session) -> int:
    keys = [key for key, _ in session.config.items()]
    commands = [command.name for _, command in session.plugins.cli_commands()]
    folder = write_plugin(arguments.name, arguments.kind, arguments.into, {*keys, *commands})
    steps = [f"cd {folder}", 'python -m pip install -e ".[test]"', "python -m pytest"]
    if arguments.json:
        files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        print(json.dumps({"folder": str(folder), "files": files, "next": steps}, indent=2))
    else:
        print(f"wrote {folder}; next:", *(f"    {step}" for step in steps), sep="\n")
    return 0
