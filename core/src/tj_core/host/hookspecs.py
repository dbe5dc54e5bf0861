"""The contract between tj and its plugins: the specifications of all hooks.

A plugin is a module (the value of its entry point in group ``tj``) or an object whose functions
are marked with `hookimpl`. The entry point's name is the plugin's name, its config table is
``[tool.tj.<name>]``. A plugin module imports only the standard library and ``tj_core``; heavy
libraries (torch, a kernel library) are imported inside the hooks.

Every hook is called at most once per session and per plugin, in the order the project's config
gives, and returns records. An implementation may leave out arguments it does not need, so hooks can
grow; how one shrinks is the policy in `tj_core.deprecations`. ``options`` is always the plugin's
own options object: the dataclass of `tj_options`, filled from the config, or None without one.

A hook's docstring tells when the hook is called, its result, and the first version with the hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from tj_core.compile.transforms import Transform
    from tj_core.contract.dialects import Dialect
    from tj_core.contract.executors import Executor
    from tj_core.contract.packages import PackageFormat
    from tj_core.contract.rules import RuleTable
    from tj_core.host.commands import CliCommand
    from tj_core.host.findings import Finding
    from tj_core.host.frontends import Frontend
    from tj_core.host.services import Services
    from tj_core.ir.tags import Tag

__all__ = ["PLUGIN_API", "hookimpl", "hookspec"]

PLUGIN_API = 1
"""Version of the contract, raised when a hook or record changes its meaning so that existing
plugins would silently go wrong; not for an addition, or a removal after warnings. A plugin may set
``TJ_PLUGIN_API`` in its module; with another value than this one, it is refused."""

hookspec = pluggy.HookspecMarker("tj")
hookimpl = pluggy.HookimplMarker("tj")

# ---------------------------------------------------------------------------- loading


@hookspec
def tj_available() -> str | None:
    """Check that the plugin can work on this machine.

    Called first, right after the plugin's module is imported; no other hook of an unavailable
    plugin is called. Being unavailable is a state, not an error, unless the project asked for the
    plugin by name.

    :returns: None if it can work, else the reason: ``"no CUDA device"``.
    Since 0.1.
    """


@hookspec
def tj_lacking(cache_dir: str | None) -> str | None:
    """Describe a shortcoming of the loaded plugin on this machine, for ``tj plugins``.

    Called for that list only, of loaded plugins. It must be quick, and import nothing heavy.

    :param cache_dir: the folder of the caches on disk that the project's config names.
    :returns: None if there is none, else a text: ``"PyTorch 2.15.0 was not tested"``.
    Since 0.1.
    """


@hookspec
def tj_options() -> type[Any]:  # type: ignore[empty-body]
    """Declare the plugin's config table ``[tool.tj.<name>]``.

    Called once, after `tj_available`, also for ``tj config``.

    :returns: a frozen dataclass; its fields are the keys, their annotations the types, their
        defaults the defaults. Keys it lacks and values of another type are errors.
    Since 0.1.
    """


# ---------------------------------------------------------------------------- programs


@hookspec
def tj_frontends(options: Any) -> tuple[Frontend, ...]:  # type: ignore[empty-body]
    """Register ways from a user's program to a trace.

    Called when the session starts.

    :param options: the plugin's options.
    :returns: `Frontend` records. Two with one name are an error.
    Since 0.1.
    """


@hookspec
def tj_dialects(options: Any) -> tuple[Dialect, ...]:  # type: ignore[empty-body]
    """Register namespaces of symbols and their meaning in Python.

    Called when the session starts.

    :param options: the plugin's options.
    :returns: `Dialect` records. Two for one namespace are an error.
    Since 0.1.
    """


@hookspec
def tj_rule_tables(options: Any) -> tuple[RuleTable[Any], ...]:  # type: ignore[empty-body]
    """Register rules: interpretations of symbols.

    Called when the session starts. Tables of one name add up; the plugin that comes first in the
    project's order wins, two of equal priority with a rule for one key are an error.

    :param options: the plugin's options.
    :returns: `RuleTable` values.
    Since 0.1.
    """


@hookspec
def tj_tags(options: Any) -> tuple[Tag, ...]:  # type: ignore[empty-body]
    """Register tags and how they propagate.

    Called when the session starts.

    :param options: the plugin's options.
    :returns: `Tag` records. Two with one name are an error.
    Since 0.1.
    """


# ---------------------------------------------------------------------------- compilation


@hookspec
def tj_transforms(options: Any) -> tuple[Transform, ...]:  # type: ignore[empty-body]
    """Register passes over traces.

    Called when the session starts.

    :param options: the plugin's options.
    :returns: `Transform` records. Two with one name are an error.
    Since 0.1.
    """


@hookspec
def tj_executors(options: Any) -> tuple[Executor, ...]:  # type: ignore[empty-body]
    """Register executors.

    Called when the session starts. Executors are asked in the order of their plugins; a fallback
    executor is asked last.

    :param options: the plugin's options.
    :returns: `Executor` records. Two with one name are an error.
    Since 0.1.
    """


@hookspec
def tj_package_formats() -> tuple[PackageFormat, ...]:  # type: ignore[empty-body]
    """Register forms of packages: programs in files (`tj.export`, `tj.load`).

    Called for these alone. It imports nothing heavy: `tj.load` starts no session.

    :returns: `PackageFormat` records. Two with one name are an error.
    Since 0.1.
    """


# ---------------------------------------------------------------------------- command line


@hookspec
def tj_findings(  # type: ignore[empty-body]
    options: Any, session: Services | None, every: bool, names: bool
) -> tuple[Finding, ...]:
    """Examine what the plugin rests on, for ``tj doctor``: libraries, compilers, devices.

    Called for that command only, of loaded plugins; it may take its time.

    :param options: the plugin's options.
    :param session: a session of the project; None if none can start.
    :param every: find what works one by one, too.
    :param names: list the private names of other libraries that the plugin uses.
    :returns: `Finding` records.
    Since 0.1.
    """


@hookspec
def tj_cli_commands(options: Any) -> tuple[CliCommand, ...]:  # type: ignore[empty-body]
    """Register subcommands of ``tj``.

    Called when the command line starts.

    :param options: the plugin's options.
    :returns: `CliCommand` records. Two with one name are an error.
    Since 0.1.
    """
