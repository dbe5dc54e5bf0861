"""The command line ``tj``: its own commands, and those of plugins.

``plugins`` and ``config`` list as much as possible even if no session can start; all other commands
need a session. A `TjError` is one message on stderr and exit status 2; an error of the user's
program is shown with its traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tj_core.cli.cache import add_cache
from tj_core.cli.console import print_error, print_json, print_table
from tj_core.cli.programs import add_explain, add_trace
from tj_core.errors import PluginConflictError, TjError
from tj_core.host.activation import reported
from tj_core.host.config import REST, load_config
from tj_core.host.discovery import core_version
from tj_core.host.options import Value
from tj_core.host.plugins import PluginManager

if TYPE_CHECKING:
    from tj_core.host.config import Config
    from tj_core.host.session import Session

__all__ = ["main"]

Run = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(argv)
    except TjError as error:
        print_error(error)
        return 2


def _run(argv: list[str]) -> int:
    options = _global_options()
    known, rest = options.parse_known_args(argv)
    parser, commands = _parser()
    # tj's own commands, and help, must work even if a plugin is broken.
    if not rest or rest[0] in ("-h", "--help"):
        with reported(print_error):
            _add_plugin_commands(known, commands)
    elif rest[0] not in _OWN | {"--version"}:
        _add_plugin_commands(known, commands)
    args = parser.parse_args(rest, known)
    run: Run | None = getattr(args, "run", None)
    if run is None:
        parser.print_help()
        return 0
    return run(args)


# ------------------------------------------------------------------------------- parsers


def _global_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    group = parser.add_argument_group("global options")
    group.add_argument("--plugins", metavar="A,B", type=_names, help="plugins to load, in order")
    group.add_argument(
        "--disable", metavar="X,Y", type=_names, help="plugins to block, besides the config's"
    )
    group.add_argument("--config", metavar="PATH", help="the pyproject.toml to read")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parser() -> tuple[argparse.ArgumentParser, Any]:
    parser = argparse.ArgumentParser(
        prog="tj",
        description="Compile PyTorch programs through readable traces.",
        parents=[_global_options()],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tj-core {core_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_plugins(commands)
    _add_config(commands)
    add_trace(commands)
    add_explain(commands)
    add_cache(commands)
    return parser, commands


def _add_plugins(commands: Any) -> None:
    parser = commands.add_parser("plugins", help="list the plugins, in order, and their states")
    parser.add_argument("--all", action="store_true", help="also those that take no part")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_plugins)


def _add_config(commands: Any) -> None:
    parser = commands.add_parser("config", help="print every setting and where it comes from")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_config)


_OWN = frozenset({"plugins", "config", "trace", "explain", "cache"})

# ------------------------------------------------------------------------------- listing


def _plugins(args: argparse.Namespace) -> int:
    manager = PluginManager(_resolved(args), lenient=True)
    shown = [s for s in manager.states if args.all or s.state not in ("blocked", "installed")]
    with reported(manager.problems.append):
        lacking = {s.name: manager.lacking(s.name) for s in shown if s.state == "loaded"}
        shown = [replace(s, reason=lacking.get(s.name, s.reason)) for s in shown]
    if args.json:
        print_json([s.as_dict() for s in shown])
    else:
        print_table(_COLUMNS, [_plugin_row(s.as_dict()) for s in shown])
    return _report(manager)


_COLUMNS = ("order", "name", "state", "distribution", "version", "hooks", "file", "reason")


def _plugin_row(state: Mapping[str, Any]) -> list[str]:
    cells = {**state, "hooks": " ".join(h.removeprefix("tj_") for h in state["hooks"])}
    return [_cell(cells[column]) for column in _COLUMNS]


def _cell(value: object) -> str:
    # One line per row, even if a reason quotes an error of several lines.
    return "-" if value is None or value == "" else " ".join(str(value).split())


def _config(args: argparse.Namespace) -> int:
    config = _resolved(args)
    manager = PluginManager(config, lenient=True)
    tables = _plugin_tables(config, manager)
    if args.json:
        plugins = {name: _values(table) for name, table in tables.items()}
        file = None if config.file is None else str(config.file)
        print_json({"file": file, "core": _values(dict(config.items())), "plugins": plugins})
    else:
        rows = _rows("", dict(config.items()))
        rows += [r for name, table in tables.items() for r in _rows(name + ".", table)]
        print_table(("key", "value", "origin"), rows)
    return _report(manager)


def _plugin_tables(config: Config, manager: PluginManager) -> dict[str, dict[str, Value[Any]]]:
    """The options of each loaded plugin, and the tables of others as written in the file."""
    tables: dict[str, dict[str, Value[Any]]] = {}
    for name in manager.names:
        resolved = manager.resolved_options(name)
        if resolved is not None:
            tables[name] = dict(resolved.items())
    for name, table in config.tables.items():
        if name not in manager.names:
            tables[name] = dict(table)
    return tables


def _values(table: Mapping[str, Value[Any]]) -> dict[str, dict[str, Any]]:
    return {key: {"value": v.value, "origin": v.origin} for key, v in table.items()}


def _rows(prefix: str, table: Mapping[str, Value[Any]]) -> list[list[str]]:
    return [[prefix + key, _toml(v.value), v.origin] for key, v in table.items()]


def _toml(value: object) -> str:
    """A value in TOML, as in ``pyproject.toml``; ``-`` for None, which TOML cannot spell."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "-" if value is None else str(value)


def _report(manager: PluginManager) -> int:
    """Print the errors that keep a session from starting, and return the exit status."""
    for error in manager.problems:
        print_error(error)
    return 2 if manager.problems else 0


# ------------------------------------------------------------------------------- plugins' commands


def _overrides(args: argparse.Namespace) -> dict[str, object]:
    overrides: dict[str, object] = {}
    if args.plugins is not None:
        overrides["plugins"] = Value(args.plugins, "cli --plugins")
    if args.disable is not None:
        overrides["disable"] = Value((*args.disable, REST), "cli --disable")
    return overrides


def _resolved(args: argparse.Namespace) -> Config:
    return load_config(args.config, _overrides(args))


def _add_plugin_commands(args: argparse.Namespace, commands: Any) -> None:
    from tj_core.host.session import Session

    session = Session(start=args.config, overrides=_overrides(args))
    for plugin, command in session.plugins.cli_commands():
        if command.name in _OWN:
            raise PluginConflictError(
                f"{session.plugins.identity(plugin)} registers the command {command.name!r}, "
                "which is tj's own"
            )
        parser = commands.add_parser(command.name, help=command.help)
        command.configure(parser)
        parser.set_defaults(run=_bound(command.run, session))


def _bound(run: Callable[[argparse.Namespace, Session], int], session: Session) -> Run:
    return lambda args: run(args, session)
