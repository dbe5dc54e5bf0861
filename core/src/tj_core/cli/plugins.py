"""The command ``tj plugins``: plugins with their states, and the order in which they are asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tj_core.cli.console import print_json, print_table, report_problems
from tj_core.cli.project_file import set_plugins
from tj_core.errors import PluginError, did_you_mean
from tj_core.host.activation import PluginState, reported
from tj_core.host.config import REST, load_config
from tj_core.host.plugins import PluginManager
from tj_core.host.ties import HOW_TO_ORDER, rivals, ties

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tj_core.host.config import Config

__all__ = ["add_plugins"]

_COLUMNS = ("order", "name", "state", "distribution", "version", "hooks", "file", "reason")


def add_plugins(commands: Any, overrides: Callable[[argparse.Namespace], Any]) -> None:
    """Add the command ``plugins`` to ``commands``, the subparsers of ``tj``.

    ``overrides`` are the config values of the parsed arguments.
    """
    parser = commands.add_parser("plugins", help="list the plugins, in order, and their states")
    parser.add_argument(
        "action", nargs="?", choices=["order"], help="order: show who is asked first, and why"
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="with order: write this order into pyproject.toml"
    )
    parser.add_argument("--write", action="store_true", help="with order: write the order shown")
    parser.add_argument("--all", action="store_true", help="also those that take no part")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def run(args: argparse.Namespace) -> int:
        config = load_config(args.config, overrides(args))
        if args.action == "order":
            return _order(args, config)
        return _list(args, PluginManager(config, lenient=True))

    parser.set_defaults(run=run)


def _list(args: argparse.Namespace, manager: PluginManager) -> int:
    shown = [s for s in manager.states if args.all or s.state not in ("blocked", "installed")]
    with reported(manager.problems.append):
        lacking = {s.name: manager.lacking(s.name) for s in shown if s.state == "loaded"}
        shown = [replace(s, reason=lacking.get(s.name, s.reason)) for s in shown]
    groups = rivals(manager)
    if args.json:
        print_json([{**s.as_dict(), "tied": _tied(s.name, groups)} for s in shown])
    else:
        print_table(_COLUMNS, [_row(s.as_dict()) for s in shown])
        for names in groups:
            print(f"\n{', '.join(names)}: names alone decide who of them is asked first for an "
                  f"operation that several take; {HOW_TO_ORDER}")  # fmt: skip
    return report_problems(manager.problems)


def _tied(name: str, groups: Iterable[tuple[str, ...]]) -> list[str]:
    return [other for names in groups if name in names for other in names if other != name]


def _row(state: Mapping[str, Any]) -> list[str]:
    cells = {**state, "hooks": " ".join(h.removeprefix("tj_") for h in state["hooks"])}
    return [_cell(cells[column]) for column in _COLUMNS]


def _cell(value: object) -> str:
    # One line per row, even if a reason quotes an error of several lines.
    return "-" if value is None or value == "" else " ".join(str(value).split())


# ------------------------------------------------------------------------------- order


def _order(args: argparse.Namespace, config: Config) -> int:
    if args.names:
        return _write(config, args.names, args.json)
    manager = PluginManager(config)
    asked = [s for s in manager.states if s.state == "loaded" and "tj_executors" in s.hooks]
    found = ties(manager)
    if args.write:
        first = [s.name for s in asked if not manager.is_fallback(s.name)]
        return _write(config, first, args.json)
    rows = [(str(i), s.name, _why(s, manager, config)) for i, s in enumerate(asked)]
    if args.json:
        data = [{"name": name, "decided_by": why} for _, name, why in rows]
        print_json({"order": data, "ties": [str(tie) for tie in found]})
        return 0
    print_table(("asked", "plugin", "by"), rows)
    for tie in found:
        print(f"\n{tie}")
    if found:
        tied = {name for tie in found for name in (tie.first, tie.second)}
        names = " ".join(name for name in manager.names if name in tied)
        print(f"\n`tj plugins order {names}` writes this order into pyproject.toml, or another one")
    return 0


def _why(state: PluginState, manager: PluginManager, config: Config) -> str:
    """The reason for a plugin's place."""
    if manager.is_fallback(state.name):
        return "always asked last"
    if manager.orders_executors:
        return f"executors ({config['executors'].origin})"
    if state.requested:
        return f"plugins ({config['plugins'].origin})"
    rank = manager.rank(state.name)
    return f"TJ_PRIORITY = {rank}" if rank else "its name"


def _write(config: Config, names: list[str], json: bool) -> int:
    """Write ``names`` in front of the plugins that the project's file lists."""
    known = [s.name for s in PluginManager(config, lenient=True).states]
    for name in names:
        if name not in known:
            raise PluginError(
                f"no plugin {name!r} is installed.{did_you_mean(name, known)}",
                hint=f"installed plugins: {', '.join(sorted(known)) or 'none'}",
            )
    path = config.file or Path.cwd() / "pyproject.toml"
    # Without the environment: ``TJ_PLUGINS`` is not to be written into the file.
    table = load_config(path, environ={}).core.plugins if config.file else None
    listed = (REST,) if table is None else table
    line = set_plugins(path, [*dict.fromkeys(names), *(n for n in listed if n not in names)])
    if json:
        print_json({"file": str(path), "line": line})
    else:
        print(f"{path}\n[tool.tj]\n{line}")
    return 0
