"""The command ``tj doctor``: findings on this machine, with the commands that mend them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tj_core.cli.console import print_json
from tj_core.cli.examination import of_core
from tj_core.errors import TjError
from tj_core.host.config import load_config
from tj_core.host.findings import Finding
from tj_core.host.plugins import PluginManager

if TYPE_CHECKING:
    import argparse

    from tj_core.host.session import Session

__all__ = ["add_doctor"]


def add_doctor(commands: Any, overrides: Callable[[argparse.Namespace], Any]) -> None:
    """Add the command ``doctor`` to ``commands``, the subparsers of ``tj``.

    ``overrides`` are the config values of the parsed arguments.
    """
    parser = commands.add_parser(
        "doctor", help="examine versions, plugins, compilers and caches, and say what mends them"
    )
    parser.add_argument("--all", action="store_true", help="also the features that work")
    parser.add_argument("--names", action="store_true", help="the private names, and their uses")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def run(args: argparse.Namespace) -> int:
        found = list(_findings(args, overrides(args)))
        if args.json:
            print_json([finding.as_dict() for finding in found])
        else:
            _print(found)
        return int(any(finding.state == "bad" for finding in found))

    parser.set_defaults(run=run)


def _findings(args: argparse.Namespace, overrides: Any) -> Iterator[Finding]:
    config = load_config(args.config, overrides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of broken plugins: they are found below
        manager = PluginManager(config, lenient=True)
        yield from of_core(config, manager)
        session = None
        if not manager.problems:
            session, finding = _session(args, overrides)
            yield finding
    for name, finding in manager.findings(session, every=args.all, names=args.names):
        yield finding if finding.topic else Finding(name, finding.text, finding.state)


def _session(args: argparse.Namespace, overrides: Any) -> tuple[Session | None, Finding]:
    from tj_core.host.session import Session

    try:
        session = Session(start=args.config, overrides=overrides)
    except TjError as error:
        return None, Finding("session", f"none can start: {error.message}", "bad", error.hint)
    names = ", ".join(e.name for e in session.executors) or "none"
    return session, Finding("session", f"starts; executors: {names}")


_MARKS = {"good": "ok", "note": "note", "bad": "BAD"}


def _print(found: list[Finding]) -> None:
    width = max(len(finding.topic) for finding in found)
    for finding in found:
        first, *more = finding.text.splitlines()
        print(f"{_MARKS[finding.state]:<5} {finding.topic.ljust(width)}  {first}")
        for line in more:
            print(line)
        if finding.remedy:
            verb = "mend" if finding.state == "bad" else "change"
            print(f"{' ' * (width + 8)}to {verb} it: {finding.remedy}")
