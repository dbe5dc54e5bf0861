"""The plugin: the command ``tj conformance``.

Imports neither torch nor anything that does; the command does.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

if TYPE_CHECKING:
    from tj_core.extend import CliCommand

TJ_PLUGIN_API = 1

SWEEPS = {
    "fuzz": "tj_conformance.programs.fuzz",
    "tally": "tj_conformance.databases.tally",
    "gradients": "tj_conformance.gradients.tally",
}
"""The sweeps by name, each a module that runs as a program."""


@hookimpl
def tj_cli_commands() -> tuple[CliCommand, ...]:
    from tj_core.extend import CliCommand

    help_ = "compare programs under tj with eager PyTorch"
    return (CliCommand("conformance", help_, _configure, _run),)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", choices=sorted(SWEEPS), help="what is compared")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the sweep")


def _run(arguments: argparse.Namespace, session: Any) -> int:
    import runpy
    import sys

    sys.argv = [arguments.sweep, *arguments.arguments]
    runpy.run_module(SWEEPS[arguments.sweep], run_name="__main__")
    return 0
