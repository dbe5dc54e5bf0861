"""The plugin: the command ``tj conformance``, and a fuser for tests.

Imports neither torch nor anything that does; the command and the fuser do.
"""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_conformance.options import Options

if TYPE_CHECKING:
    from tj_core.extend import CliCommand, Executor, RuleTable, Session

TJ_PLUGIN_API = 1


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
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    from collections.abc import Mapping

    from tj_core.extend import RuleTable

    return (RuleTable("tolerance", rule_type=Mapping),)  # read by `executor.tolerances`


@hookimpl
def tj_cli_commands() -> tuple[CliCommand, ...]:
    from tj_core.extend import CliCommand

    help_ = "compare programs under tj with eager PyTorch"
    return (CliCommand("conformance", help_, _configure, _run),)


def _configure(parser: argparse.ArgumentParser) -> None:
    from tj_conformance.suites import SUITES

    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Suites:\n" + "\n".join(
        f"  {name:14} {subject}" for name, (_, subject) in SUITES.items()
    )
    parser.add_argument("suite", choices=tuple(SUITES), metavar="SUITE", help="what is compared")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the suite")


def _run(arguments: argparse.Namespace, session: Session) -> int:
    import importlib.util
    import runpy
    import sys

    from tj_core.extend import TjError

    from tj_conformance.suites import SUITES, usage

    module = f"{__package__}.{SUITES[arguments.suite][0]}"
    if arguments.suite == "executor":
        from tj_conformance.executor.command import main
        from tj_conformance.executor.subject import subject

        return main(arguments.arguments, functools.partial(subject, session=session))
    sys.argv = [usage(module), *arguments.arguments]
    try:
        # The file, not the module by name: pytest, which rewrites the assertions of packages with
        # a pytest plugin, has a loader that `runpy.run_module` cannot use.
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        runpy.run_path(spec.origin, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tj_"):
            raise
        raise TjError(
            f"{usage(module)} needs the package {error.name!r}, which is not installed",
            hint=f"pip install {error.name}",
        ) from error
    return 0
