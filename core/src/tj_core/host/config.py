"""The project's configuration: its file, the core's keys, and the precedence of sources.

A value comes from the strongest of: the call, the command line, the environment (``TJ_<KEY>``),
``[tool.tj]`` in the nearest ``pyproject.toml``, the default. Plugins' tables ``[tool.tj.<name>]``
are kept here unread until their plugin has declared its keys.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from tj_core.errors import ConfigError, TjWarning, close, did_you_mean
from tj_core.host.options import DEFAULT, Layer, Resolved, Value, env_layer, layer, resolve, schema
from tj_core.verify.verifier import Check  # noqa: TC001 - the type of an option is read

__all__ = [
    "CORE_KEYS",
    "REST",
    "Config",
    "CoreOptions",
    "Value",
    "load_config",
    "parse_toml",
    "strength",
]

T = TypeVar("T")

REST = "..."
"""The item that stands for the defaults in a list of names."""


OnMiss = Literal["compile", "eager"]
"""Answers of a call that no program is there for."""


Compile = Literal["call", "background"]
"""Times at which kernels are compiled: in the call that needs them, or behind it."""


Topic = Literal["all", "compile", "graph_breaks", "recompiles"]
"""The topics of log lines."""


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """The keys of ``[tool.tj]``.

    - ``plugins``: the plugins to load, in order of priority; ``"..."`` stands for all others that
        are installed. By default all installed plugins.
    - ``disable``: plugins that are not even imported. ``"..."`` stands for the plugins that weaker
      sources disable.
    - ``required``: requirements (``"tj-nvfuser>=0.1,<0.2"``) that must be installed.
    - ``minversion``: the oldest version of tj-core that is accepted.
    - ``check``: the level of verification after every pass: 0 none, 1 form, 2 also all metadata;
      ``"sample"`` is 2 for one program in eight, 1 for the others. 3 is 2, and compares every run
      of a call by an executor other than the fallback with the call's body, values included.
    - ``cse``: replace a call by an earlier one that computes the same.
    - ``memo``: remember expansions between calls.
    - ``strict``: raise an error instead of going on without tj or a plugin: for a broken plugin
      that the project does not name, for a program on which a pass of tj's own fails, and for
      one that cannot be captured whole, unless ``fullgraph`` is false.
    - ``enable``: compile; if false, all jitted programs run as they were written.
    - ``fullgraph``: a program that cannot be captured whole is an error, as with the option of
      ``torch.compile``; left out, as ``strict`` says.
    - ``on_miss``: what a call does that no program is there for: ``"compile"`` one, or run in
      ``"eager"`` at once, while a thread compiles behind it.
    - ``compile``: kernels are compiled in the ``"call"`` that needs them first, or in the
      ``"background"``, while PyTorch's run.
    - ``max_entries``: the number of specialisations of one function that are kept; the one that
      has gone unused for longest makes room.
    - ``recompile_limit``: the number of these for values of one Python object, such as strings;
      calls with other values run eagerly.
    - ``frontend``: the frontend's name; left out, the first that accepts the program.
    - ``executors``: the executors to ask, in order; ``"..."`` stands for all others.
    - ``freeze``: a promise that parameters are not written any more once a program is compiled, so
      that executors may keep them in another form.
    - ``cache_dir``: the folder of the caches on disk; by default in the user's cache folder;
      ``"none"`` keeps nothing.
    - ``trace_hooks``: print every call of a hook to stderr.
    - ``logs``: the topics whose log lines are printed.
    - ``progress``: show on a terminal how far a compilation of more than two seconds is.
    """

    plugins: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    minversion: str | None = None
    check: Check = 0
    cse: bool = True
    memo: bool = True
    strict: bool = False
    enable: bool = True
    fullgraph: bool | None = None
    on_miss: OnMiss = "compile"
    compile: Compile = "call"
    max_entries: int = 64
    recompile_limit: int = 8
    frontend: str | None = None
    executors: tuple[str, ...] | None = None
    freeze: bool = False
    cache_dir: str | None = None
    trace_hooks: bool = False
    logs: tuple[Topic, ...] = ()
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("max_entries", "recompile_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name!r} must be at least 1, not {getattr(self, name)}")


CORE_KEYS = tuple(f.name for f in fields(CoreOptions))
"""The core's keys, which no plugin can have as its name."""


OF_TESTS = (
    "TJ_FULL", "TJ_SAMPLE", "TJ_ONE_IN", "TJ_DEVICE", "TJ_FUZZ", "TJ_FUZZ_FRONTEND", "TJ_FUZZ_FX",
)  # fmt: skip
"""Environment variables of tj's own tests."""


@dataclass(frozen=True, slots=True)
class Config:
    """The resolved core keys, and the plugins' tables as they were written.

    ``core`` holds the values, ``config["check"]`` one value with its origin. ``file`` is the
    project's ``pyproject.toml``, or None.
    """

    core: CoreOptions
    origins: Mapping[str, str]
    file: Path | None = None
    tables: Mapping[str, Layer] = field(default_factory=dict)
    calls: Mapping[str, Layer] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Value[Any]:
        return Value(getattr(self.core, key), self.origins[key])

    def items(self) -> Iterator[tuple[str, Value[Any]]]:
        """Every core key with its value and origin."""
        return ((key, self[key]) for key in CORE_KEYS)

    def plugin_options(
        self,
        plugin: str,
        cls: type[T],
        call: Mapping[str, object] | None = None,
        known: Collection[str] = (),
    ) -> Resolved[T]:
        """Fill ``plugin``'s options dataclass from all sources.

        ``call`` holds values of this one call, stronger than all others; ``known`` are the names
        of all plugins, to find the owner of a variable ``TJ_A_B_C``. An option with the name of a
        core key defaults to the value of that key, if it is set.

        :raises ConfigError: naming the source and the key that is unknown or of the wrong type.
        """
        self._check_environment(plugin, cls, known)
        return resolve(
            cls,
            [
                layer(call or {}, "call"),
                self.calls.get(plugin, {}),
                env_layer(cls, _prefix(plugin), self.environ),
                self.tables.get(plugin, {}),
                self._set(schema(cls)),
            ],
        )

    def _set(self, keys: Collection[str]) -> Layer:
        """The core keys among ``keys`` that a source other than the default has set."""
        return {key: self[key] for key in keys if self.origins.get(key, DEFAULT) != DEFAULT}

    def check_tables(self, known: Collection[str]) -> None:
        """Check that all tables and options belong to ``known`` plugins.

        :raises ConfigError: naming the file and the table.
        """
        for tables, form in ((self.calls, "option"), (self.tables, "table")):
            for name in tables:
                if name not in known:
                    where = "call" if form == "option" else f"{self.file} [tool.tj]"
                    raise ConfigError(
                        f"{where}: {form} {name!r} belongs to no installed plugin."
                        + did_you_mean(name, [*known, *CORE_KEYS]),
                        hint=f"installed plugins: {', '.join(sorted(known)) or 'none'}",
                    )

    def check_environment(self, known: Collection[str]) -> None:
        """Check the names of variables ``TJ_...``; ``known`` are the plugins.

        A name that resembles none of tj's may belong to another program, and gives a warning only.

        :raises ConfigError: for a misspelled name, with the name that was probably meant.
        """
        mine = [*map(_variable, CORE_KEYS), "TJ_CONFIG", *OF_TESTS]
        prefixes = tuple(map(_prefix, known))
        for variable in sorted(self.environ):
            if variable in mine or not variable.startswith("TJ_") or variable.startswith(prefixes):
                continue
            rest = variable.split("_", 2)[2:]
            text = f"env {variable}: tj has no such key."
            names = [*mine, *(p + r for p in prefixes for r in rest)]
            # Without the prefix, by which all names are alike.
            meant = close(variable[3:], [name[3:] for name in names])
            if meant is not None:
                raise ConfigError(
                    f"{text} Did you mean {'TJ_' + meant!r}?",
                    hint=f"known keys: {', '.join(CORE_KEYS)}",
                )
            warnings.warn(TjWarning(f"tj: {text}"), stacklevel=2)

    def _check_environment(self, plugin: str, cls: type[Any], known: Collection[str]) -> None:
        prefix, keys = _prefix(plugin), schema(cls)
        others = tuple(p for p in map(_prefix, known) if p != prefix and p.startswith(prefix))
        core = {_variable(key) for key in CORE_KEYS}
        for variable in sorted(self.environ):
            if not variable.startswith(prefix) or variable in core:
                continue
            key = variable[len(prefix) :].lower()
            if key not in keys and not variable.startswith(others or ("\0",)):
                raise ConfigError(
                    f"env {variable}: plugin {plugin!r} has no option {key!r}."
                    + did_you_mean(key, keys),
                    hint=f"known options: {', '.join(keys) or 'none'}",
                )


def load_config(
    start: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Find, read and resolve the project's configuration.

    ``start`` is the folder to search upward from (default: the working directory), or a file to
    read instead of searching. ``overrides`` are the call's values: core keys, and for a plugin its
    name with a mapping. A value may be a `Value`, which keeps its origin.

    :raises ConfigError: for an unknown key, a wrong type, a file that is missing or not TOML.
    """
    environ = dict(os.environ if environ is None else environ)
    file = _config_file(start, environ)
    table = _tool_table(_parse(file), file) if file else {}
    core, tables = _split(table or {}, f"{file} [tool.tj]")
    call, calls = _split(overrides or {}, "call")
    layers: list[Layer] = [call, env_layer(CoreOptions, "TJ_", environ), core]
    resolved = resolve(CoreOptions, [_disabled(layers), *layers])
    return Config(resolved.options, resolved.origins, file, tables, calls, environ)


def strength(origin: str) -> int:
    """The precedence of a source as a number: the smaller the stronger."""
    order = ("call", "cli", "env")
    found = (i for i, kind in enumerate(order) if origin == kind or origin.startswith(kind + " "))
    return next(found, len(order) + (origin == DEFAULT))


# ------------------------------------------------------------------------------- layers


def _split(
    values: Mapping[str, object], origin: str
) -> tuple[dict[str, Value[Any]], dict[str, dict[str, Value[Any]]]]:
    """The core's own values, and those of each plugin's table."""
    core: dict[str, object] = {}
    tables = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and key not in CORE_KEYS:
            inner = f"{origin[:-1]}.{key}]" if origin.endswith("[tool.tj]") else f"{origin} {key}"
            tables[key] = layer(value, inner)
        else:
            core[key] = value
    return layer(core, origin), tables


def _disabled(layers: list[Layer]) -> Layer:
    """The strongest ``disable``, with ``"..."`` replaced by the names of weaker layers."""
    merged: Value[Any] | None = None
    for each in reversed(layers):
        value = each.get("disable")
        if value is None or not isinstance(value.value, list | tuple):
            continue
        if REST in value.value:
            value = _spliced(value, merged)
        merged = value
    return {} if merged is None else {"disable": merged}


def _spliced(value: Value[Any], weaker: Value[Any] | None) -> Value[Any]:
    rest = list(weaker.value) if weaker else []
    own = [name for name in value.value if name != REST]
    origin = f"{value.origin}, {weaker.origin}" if weaker and rest else value.origin
    return Value([*own, *(name for name in rest if name not in own)], origin)


def _variable(key: str) -> str:
    return "TJ_" + key.upper()


def _prefix(plugin: str) -> str:
    return "TJ_" + "".join(c if c.isalnum() else "_" for c in plugin).upper() + "_"


# ------------------------------------------------------------------------------- files


def _config_file(start: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    if start is not None and not Path(start).is_dir():
        return _existing(Path(start), "config file")
    if environ.get("TJ_CONFIG"):
        return _existing(Path(environ["TJ_CONFIG"]), "TJ_CONFIG")
    folder = Path(start or ".").absolute()
    return next(filter(_has_table, (f / "pyproject.toml" for f in (folder, *folder.parents))), None)


def _existing(path: Path, what: str) -> Path:
    if not path.is_file():
        raise ConfigError(f"{what}: there is no file {path}", hint="it names a pyproject.toml")
    return path.absolute()


def _has_table(path: Path) -> bool:
    # The cheap test first: a broken file of an unrelated project above is not ours to report.
    if not path.is_file() or b"tj" not in path.read_bytes():
        return False
    return _tool_table(_parse(path), path) is not None


def _parse(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text("utf-8"), path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """The document ``text``, which is that of the file at ``path``.

    :raises ConfigError: naming the file, if it is not TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return document


def _tool_table(document: dict[str, Any], path: Path) -> dict[str, Any] | None:
    if "tj" in document:
        raise ConfigError(f"{path}: unknown table [tj]. Did you mean [tool.tj]?")
    tool = document.get("tool")
    table = tool.get("tj") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: 'tool.tj' must be a table, not {table!r}")
    return table
