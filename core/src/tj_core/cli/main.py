"""The command line ``tj``: its own commands, and those of plugins.

``plugins`` and ``config`` list as much as possible even if no session can start; all other commands
need a session. A `TjError` is one message on stderr and exit status 2; an error of the user's
program is shown with its traceback.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.cli.cache import add_cache
from tj_core.cli.console import print_error, print_json, print_table, report_problems
from tj_core.cli.doctor import add_doctor
from tj_core.cli.plugins import add_plugins
from tj_core.cli.programs import add_compare, add_explain, add_trace
from tj_core.errors import PluginConflictError, TjError, did_you_mean
from tj_core.host.activation import reported
from tj_core.host.commands import OWN_COMMANDS
from tj_core.host.config import REST, load_config
from tj_core.host.discovery import core_version
from tj_core.host.options import Value
from tj_core.host.plugins import PluginManager, check_chosen

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
    elif rest[0].startswith("-"):
        _check_option(rest[0], parser)
    elif rest[0] not in OWN_COMMANDS:
        _add_plugin_commands(known, commands)
        _check_command(rest[0], commands)
    args, unknown = parser.parse_known_args(rest, known)
    if unknown:
        _check_option(unknown[0], commands.choices.get(rest[0], parser))
    run: Run | None = getattr(args, "run", None)
    if run is None:
        parser.print_help()
        return 0
    return run(args)


def _check_command(name: str, commands: Any) -> None:
    known = commands.choices
    if name not in known:
        raise TjError(
            f"there is no command {name!r}.{did_you_mean(name, known)}",
            hint=f"commands: {', '.join(known)}; plugins add more (tj plugins)",
        )


def _check_option(text: str, parser: argparse.ArgumentParser) -> None:
    name = text.partition("=")[0]
    own, everywhere = (_options_of(p) for p in (parser, _global_options()))
    if name in own:
        return
    known = own if did_you_mean(name, own) else everywhere
    what = "option" if name.startswith("-") else "argument"
    raise TjError(
        f"{parser.prog} takes no {what} {name!r}.{did_you_mean(name, known)}",
        hint=f"{parser.prog} --help lists what it takes",
    )


def _options_of(parser: argparse.ArgumentParser) -> list[str]:
    return re.findall(r"(?<![\w-])--?[a-z][\w-]*", parser.format_help())


# ------------------------------------------------------------------------------- parsers


def _global_options() -> argparse.ArgumentParser:
    # It sees options of commands, too, of which an abbreviation of its own may be one.
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
    add_plugins(commands, _overrides)
    _add_config(commands)
    add_trace(commands)
    add_explain(commands)
    add_compare(commands)
    add_doctor(commands, _overrides)
    add_cache(commands)
    return parser, commands


def _add_config(commands: Any) -> None:
    parser = commands.add_parser("config", help="print every setting and where it comes from")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of [tool.tj], with all plugins"
    )
    parser.set_defaults(run=_config)


# ------------------------------------------------------------------------------- listing


def _config(args: argparse.Namespace) -> int:
    config = _resolved(args)
    manager = PluginManager(config, lenient=True)
    if args.schema:
        from tj_core.host.json_schema import config_schema

        print_json(config_schema(manager))
        return report_problems(manager.problems)
    with reported(manager.problems.append):
        check_chosen(config, manager)
    tables = _plugin_tables(config, manager)
    if args.json:
        plugins = {name: _values(table) for name, table in tables.items()}
        file = None if config.file is None else str(config.file)
        print_json({"file": file, "core": _values(dict(config.items())), "plugins": plugins})
    else:
        rows = _rows("", dict(config.items()))
        rows += [r for name, table in tables.items() for r in _rows(name + ".", table)]
        print_table(("key", "value", "origin"), rows)
    return report_problems(manager.problems)


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
    manager = PluginManager(_resolved(args))
    for plugin, command in manager.cli_commands():
        if command.name in OWN_COMMANDS:
            raise PluginConflictError(
                f"{manager.identity(plugin)} registers the command {command.name!r}, "
                "which is tj's own"
            )
        parser = commands.add_parser(command.name, help=command.help)
        command.configure(parser)
        parser.set_defaults(run=_with_session(command.run))


def _with_session(run: Callable[[argparse.Namespace, Session], int]) -> Run:
    def call(args: argparse.Namespace) -> int:
        from tj_core.host.session import Session

        return run(args, Session(start=args.config, overrides=_overrides(args)))

    return call
