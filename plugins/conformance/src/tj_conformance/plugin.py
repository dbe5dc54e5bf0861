"""The plugin: the command ``tj conformance``, and a fuser for tests.

Imports neither torch nor anything that does; the command and the fuser do.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_conformance.options import Options

if TYPE_CHECKING:
    from tj_core.extend import CliCommand, Executor

TJ_PLUGIN_API = 1

SWEEPS = {
    "fuzz": "tj_conformance.programs.fuzz",
    "tally": "tj_conformance.databases.tally",
    "gradients": "tj_conformance.gradients.tally",
    "names": "tj_conformance.names.run",
    "installed": "tj_conformance.installed",
}
"""The sweeps by name, each a module that runs as a program."""


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_executors(options: Options) -> tuple[Executor, ...]:
    if not options.fuse:
        return ()
    from tj_conformance.fuser import text_executor

    return (text_executor(),)


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
