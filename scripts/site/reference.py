"""The page docs/reference.md: hooks, records, rule tables, settings and commands, from the code.

``page()`` is the text; ``python tests/test_docs.py`` writes it. Everything is read from the
plugins' modules, so that the page does not depend on which plugins work on a machine.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent.parent
OPENING = """# Reference

Hooks, records, rule tables, settings and commands, as the code declares them. Written by
`python tests/test_docs.py`. [plugins.md](plugins.md) explains the hooks, [api.md](api.md) every
public name, [plugins.md](plugins.md#choosing-plugins) where settings come from.
"""


def page() -> str:
    """The whole page."""
    found = dict(plugins())
    parts = [OPENING, *hooks(), *records(), *tables(found), *settings(found), *commands(found)]
    return "\n".join(parts)


def plugins() -> Iterator[tuple[str, ModuleType]]:
    """Each plugin of ``plugins/`` by name, with its module."""
    for file in sorted(ROOT.glob("plugins/*/src/*/plugin.py")):
        package = file.parent.name
        yield package.removeprefix("tj_"), importlib.import_module(f"{package}.plugin")


def ask(plugin: ModuleType, hook: str) -> Any:
    """Result of a plugin's hook with the default options; an empty tuple if it has none."""
    function = getattr(plugin, hook, None)
    if function is None:
        return ()
    takes = "options" in inspect.signature(function).parameters
    options = plugin.tj_options()() if hasattr(plugin, "tj_options") else None
    return function(options) if takes else function()


def first(text: str | None) -> str:
    """The first paragraph of a docstring on one line, with Markdown's code marks."""
    paragraph = inspect.cleandoc(text or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`")


def cell(text: object) -> str:
    """A text as the cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def code(text: object) -> str:
    """A text as code in the cell of a table; nothing for an empty one."""
    return f"`{cell(text)}`" if str(text) else ""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# ------------------------------------------------------------------------------- hooks, records


def hooks() -> Iterator[str]:
    """The section of hooks."""
    from tj_core.host import hookspecs

    rows = []
    for name, function in vars(hookspecs).items():
        if name.startswith("tj_"):
            signature = inspect.signature(function)
            since = re.search(r"Since (\d+\.\d+)", function.__doc__ or "")
            rows.append((
                code(f"{name}({', '.join(signature.parameters)})"),
                code(signature.return_annotation),
                cell(first(function.__doc__)),
                since[1] if since else "",
            ))  # fmt: skip
    yield "## Hooks\n"
    yield table(("hook", "returns", "", "since"), rows)


def records() -> Iterator[str]:
    """The section of records: dataclasses that `tj_core.extend` exports."""
    import tj_core.extend

    yield "## Records\n"
    yield "Fields, in the order of arguments. `...` is a default that is made anew, or an object.\n"
    for name in sorted(tj_core.extend.__all__):
        kind = getattr(tj_core.extend, name)
        shown = dataclasses.is_dataclass(kind) and isinstance(kind, type)
        fields = [f for f in dataclasses.fields(kind) if f.init] if shown else []
        if fields and not issubclass(kind, BaseException):
            rows = [(code(f.name), code(annotation(f)), default(f)) for f in fields]
            yield f"### `{name}`\n"
            yield f"{first(kind.__doc__)}\n"
            yield table(("field", "type", "default"), rows)


def annotation(field: dataclasses.Field[Any]) -> str:
    """The type of a field as its source spells it."""
    kind: Any = field.type
    return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))


def default(field: dataclasses.Field[Any]) -> str:
    """The default of a field; nothing for one that must be given."""
    if field.default is dataclasses.MISSING:
        return "" if field.default_factory is dataclasses.MISSING else "`...`"
    if isinstance(field.default, frozenset) and field.default:
        return code(f"frozenset({{{', '.join(sorted(map(repr, field.default)))}}})")
    simple = isinstance(field.default, bool | int | float | str | tuple | frozenset | None)
    return code(repr(field.default)) if simple else "`...`"


# ------------------------------------------------------------------------------- rule tables


def tables(found: Mapping[str, ModuleType]) -> Iterator[str]:
    """The section of rule tables: names, types, plugins with rules, docstrings of constants."""
    owners: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    own_docs: dict[str, str | None] = {}
    for name, plugin in found.items():
        for registered in ask(plugin, "tj_rule_tables"):
            owners.setdefault(registered.name, []).append(name)
            kind = registered.rule_type
            if kind is not None:
                kinds[registered.name] = getattr(kind, "__name__", str(kind))
                own_docs[registered.name] = kind.__doc__ if kind.__module__[:3] == "tj_" else ""
    described = descriptions()
    rows = [
        (
            code(name),
            code(kinds.get(name, "")),
            ", ".join(sorted(set(owners[name]))),
            cell(described.get(name) or first(own_docs.get(name))),
        )
        for name in sorted(owners)
    ]
    yield "## Rule tables\n"
    yield (
        "A plugin adds to a table by registering one of the same name; keys are names of symbols."
        " The type is what the table's rules must be, where its reader checks that.\n"
    )
    yield table(("table", "type", "plugins with rules", ""), rows)


def descriptions() -> dict[str, str]:
    """Docstrings of constants that are names of rule tables, by the name of the table."""
    said: dict[str, str] = {}
    for file in sorted([*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        source = file.read_text("utf-8")
        if "RuleTable" in source or "rule table" in source:
            about = first(ast.get_docstring(ast.parse(source)))
            for name, text in constants(source):
                own = PLAIN.sub("", text) or about
                said.setdefault(name, own[:1].upper() + own[1:])
    return said


PLAIN = re.compile(r"^(The name|Name) of the rule table(: |[.;].*$)|^The table's name\.$")
"""Opening of a docstring that says no more than the section does; the module's says more then."""


def constants(source: str) -> Iterator[tuple[str, str]]:
    """Texts assigned to names in capitals that have a docstring below, with that."""
    body = ast.parse(source).body
    for before, after in itertools.pairwise(body):
        match before, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ) if name.strip("_").isupper():
                yield text, first(doc)


# ------------------------------------------------------------------------------- settings


def settings(found: Mapping[str, ModuleType]) -> Iterator[str]:
    """The section of settings: the core's keys and every plugin's."""
    from tj_core.host.config import CoreOptions

    yield "## Settings\n"
    yield (
        "A key of the table `[tool.tj]`, or of a plugin's own, has a variable of the environment,"
        " which is stronger. Lists are separated by commas there.\n"
    )
    yield from keys("tj", "TJ_", CoreOptions)
    for name, plugin in found.items():
        if hasattr(plugin, "tj_options"):
            yield from keys(f"tj.{name}", f"TJ_{name.upper()}_", plugin.tj_options())


def keys(section: str, prefix: str, options: type[Any]) -> Iterator[str]:
    """The part for one table of the config."""
    yield f"### `[tool.{section}]`\n"
    text = inspect.cleandoc(options.__doc__ or "").replace("``", "`")
    yield re.sub(r"\n {3,4}(?=\S)", "\n  ", text.partition("\n\n")[2] or text) + "\n"
    rows = [
        (code(f.name), code(prefix + f.name.upper()), code(annotation(f)), default(f))
        for f in dataclasses.fields(options)
    ]
    yield table(("key", "variable", "type", "default"), rows)


# ------------------------------------------------------------------------------- command line


def commands(found: Mapping[str, ModuleType]) -> Iterator[str]:
    """The section of commands: tj's own, and those of plugins."""
    from tj_core.cli.main import _parser

    yield "## Command line\n"
    yield "Options of all commands stand before it: `tj --disable inductor trace FILE:FUNCTION`.\n"
    parser, added = _parser()
    yield arguments(parser)
    helps = {choice.dest: choice.help for choice in added._choices_actions}
    for name, own in added.choices.items():
        yield f"### `tj {name}`\n"
        yield f"Of the core: {helps[name]}.\n"
        yield arguments(own)
    for plugin, module in found.items():
        for command in ask(module, "tj_cli_commands"):
            theirs = argparse.ArgumentParser(prog=f"tj {command.name}")
            command.configure(theirs)
            yield f"### `tj {command.name}`\n"
            yield f"Of plugin `{plugin}`: {command.help}.\n"
            yield arguments(theirs)


def arguments(parser: argparse.ArgumentParser) -> str:
    """The arguments of a parser as a table; nothing if it takes none."""
    rows = [
        (code(spelled(action)), cell(meaning(action)))
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]
    return table(("argument", ""), rows) if rows else ""


def spelled(action: argparse.Action) -> str:
    """The form of an argument on the command line."""
    name = ", ".join(action.option_strings)
    if action.nargs == 0:
        return name
    value = str(action.metavar or action.dest.upper())
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    value = {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(
        str(action.nargs), value
    )
    return f"{name} {value}".strip()


def meaning(action: argparse.Action) -> str:
    """The help of an argument, with its default if that says something."""
    text = (action.help or "").replace("%(default)s", str(action.default))
    simple = isinstance(action.default, str | int | float) and not isinstance(action.default, bool)
    if simple and action.default != argparse.SUPPRESS and "default" not in text:
        text = f"{text}; default: `{action.default}`".lstrip("; ")
    return text
