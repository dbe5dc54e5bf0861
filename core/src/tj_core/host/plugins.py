"""The plugin manager of a session: the loaded plugins, and one typed method per hook.

`discovery` finds the installed plugins, `activation` loads some of them. Here the hooks of the
loaded plugins are called, each plugin by itself, so that every record and every error is
attributed to its plugin.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from tj_core.compile.transforms import Transform
from tj_core.contract.dialects import Dialect
from tj_core.contract.executors import Executor
from tj_core.contract.packages import PackageFormat
from tj_core.errors import (
    ConfigError,
    PluginConflictError,
    PluginError,
    TjError,
    TjWarning,
    did_you_mean,
    how_to_disable,
)
from tj_core.host.activation import PluginState, activate, raise_error, reported
from tj_core.host.commands import CliCommand
from tj_core.host.config import REST
from tj_core.host.discovery import Found, discover
from tj_core.host.frontends import Frontend
from tj_core.host.hookcall import Observer, call_hook, print_call
from tj_core.host.loading import inline_plugin, new_manager
from tj_core.host.requirements import check_requirements

if TYPE_CHECKING:
    from tj_core.contract.rules import RuleTable
    from tj_core.host.config import Config
    from tj_core.host.findings import Finding
    from tj_core.host.options import Resolved
    from tj_core.host.services import Services
    from tj_core.ir.tags import Tag

__all__ = ["PluginManager", "PluginState", "check_chosen", "default_observers", "split_plugins"]

R = TypeVar("R")

NO_MORE: Mapping[str, Any] = MappingProxyType({})
"""No arguments of a hook beside the options."""


def split_plugins(
    plugins: Sequence[str | object] | None,
) -> tuple[tuple[str, ...] | None, tuple[object, ...]]:
    """Split a list of names and plugin objects into all names, in order, and the objects.

    :raises PluginError: for an object without a name.
    """
    if plugins is None:
        return None, ()
    if isinstance(plugins, str):
        raise ConfigError(f"plugins must be a list of names and objects, not {plugins!r}")
    names = tuple(p if isinstance(p, str) else inline_plugin(p)[0].name for p in plugins)
    return names, tuple(p for p in plugins if not isinstance(p, str))


def default_observers(config: Config) -> tuple[Observer, ...]:
    """The observers of hook calls: the printer if ``trace_hooks`` is on."""
    return (print_call,) if config.core.trace_hooks else ()


class PluginManager:
    """The plugins of one session.

    ``states`` has a record of every known plugin, the loaded ones first and in order; ``problems``
    the errors that a ``lenient`` manager, made to list plugins, recorded instead of raising.
    """

    def __init__(
        self, config: Config, objects: Sequence[object] = (), *, lenient: bool = False
    ) -> None:
        """List, select and load plugins.

        ``objects`` are the plugin objects that were passed in, whose names `split_plugins` has put
        into the config's ``plugins``.

        :raises TjError: for a fault of the config, of a plugin that the project names or, in
            strict mode, of any plugin. Otherwise a broken plugin is a `TjWarning`.
        """
        self.problems: list[TjError] = []
        report = self.problems.append if lenient else raise_error
        self._observers = default_observers(config)
        self._cache_dir = config.core.cache_dir
        self._strict = config.core.strict
        self._orders_executors = config.core.executors is not None
        self._records: dict[str, tuple[tuple[str, Any], ...]] = {}
        self._known: dict[str, Found] = {}
        inline = [inline_plugin(o) for o in objects]
        with reported(report):
            self._known = _by_name([*discover(), *(found for found, _ in inline)])
        with reported(report):
            check_requirements(config)
        with reported(report):
            config.check_tables(self._known)
        with reported(report):
            config.check_environment(self._known)
        by_name = {found.name: plugin for found, plugin in inline}
        activation = activate(config, self._known, by_name, self._observers, report)
        self.states: tuple[PluginState, ...] = activation.states
        self._loaded, self._ranks = activation.loaded, activation.ranks
        self._pluggy = self._registered()

    @property
    def names(self) -> tuple[str, ...]:
        """The loaded plugins, in order."""
        return tuple(self._loaded)

    def state(self, name: str) -> PluginState:
        """The record of one known plugin.

        :raises KeyError: for an unknown name.
        """
        return {s.name: s for s in self.states}[name]

    def rank(self, plugin: str) -> int:
        """The priority of a loaded plugin's rules, higher wins.

        Plugins that the project names have ranks of their own that follow its order; the rank of
        others is their ``TJ_PRIORITY``.
        """
        return self._ranks[plugin]

    @property
    def orders_executors(self) -> bool:
        """True if the project itself says in which order executors are asked."""
        return self._orders_executors

    def is_fallback(self, plugin: str) -> bool:
        """Test for a loaded plugin whose executors are asked last (``TJ_FALLBACK``)."""
        return self._loaded[plugin].fallback

    def are_tied(self, one: str, two: str) -> bool:
        """Test if names alone decide which of two loaded plugins comes first."""
        named = self.state(one).requested or self.state(two).requested
        return one != two and not named and self.rank(one) == self.rank(two)

    def options(self, plugin: str) -> Any:
        """The options of a loaded plugin; None if it declares none."""
        resolved = self._loaded[plugin].options
        return None if resolved is None else resolved.options

    def resolved_options(self, plugin: str) -> Resolved[Any] | None:
        """The options of a loaded plugin with the origin of each; None if it declares none."""
        return self._loaded[plugin].options

    def lacking(self, plugin: str) -> str:
        """A loaded plugin's description of a shortcoming on this machine; empty if none.

        :raises PluginError: if the hook raises, or returns neither None nor text.
        """
        said = self._call("tj_lacking", plugin, {"cache_dir": self._cache_dir})
        if said is not None and not isinstance(said, str):
            raise PluginError(f"tj_lacking of {plugin} must return None or text, not {said!r}")
        return said or ""

    def identity(self, plugin: str) -> str:
        """A known plugin in words: name, distribution and version."""
        return str(self._known[plugin])

    # ---------------------------------------------------------------------- one method a hook

    def frontends(self) -> tuple[tuple[str, Frontend], ...]:
        """The records of ``tj_frontends``, each with its plugin's name."""
        return self._collect("tj_frontends", Frontend, "name")

    def dialects(self) -> tuple[tuple[str, Dialect], ...]:
        """The records of ``tj_dialects``, each with its plugin's name."""
        return self._collect("tj_dialects", Dialect, "namespace")

    def rule_tables(self) -> tuple[tuple[str, RuleTable[Any]], ...]:
        """The tables of ``tj_rule_tables``, each with its plugin's name; not yet stamped."""
        from tj_core.contract.rules import RuleTable

        return self._collect("tj_rule_tables", RuleTable, "")

    def tags(self) -> tuple[tuple[str, Tag], ...]:
        """The records of ``tj_tags``, each with its plugin's name."""
        from tj_core.ir.tags import BUILTIN_TAGS, Tag

        found = self._collect("tj_tags", Tag, "name")
        own = {tag.name for tag in BUILTIN_TAGS}
        for plugin, tag in found:
            if tag.name in own:
                raise PluginConflictError(
                    f"tj_tags: {self.identity(plugin)} registers the tag {tag.name!r}, "
                    "which is tj's own",
                    hint=f"give it another name; {how_to_disable(plugin)}",
                )
        return found

    def transforms(self) -> tuple[tuple[str, Transform], ...]:
        """The records of ``tj_transforms``, each with its plugin's name."""
        return self._collect("tj_transforms", Transform, "name")

    def executors(self) -> tuple[tuple[str, Executor], ...]:
        """The records of ``tj_executors``, each with its plugin's name.

        Programs run without an executor, too. So the failure of a plugin that the project does not
        name is a warning, and all executors of the plugin are left out.
        """
        return self._collect("tj_executors", Executor, "name", dispensable=True)

    def package_formats(self) -> tuple[tuple[str, PackageFormat], ...]:
        """The records of ``tj_package_formats``, each with its plugin's name."""
        return self._collect("tj_package_formats", PackageFormat, "name")

    def cli_commands(self) -> tuple[tuple[str, CliCommand], ...]:
        """The records of ``tj_cli_commands``, each with its plugin's name."""
        return self._collect("tj_cli_commands", CliCommand, "name")

    def findings(
        self, session: Services | None, *, every: bool, names: bool
    ) -> Iterator[tuple[str, Finding]]:
        """The records of ``tj_findings``, each with its plugin's name; made when asked for.

        The failure of a plugin is a finding, too.
        """
        from tj_core.host.findings import Finding

        given = {"session": session, "every": every, "names": names}
        for plugin in self._implementing("tj_findings"):
            try:
                found = self._ask("tj_findings", plugin, Finding, "", given)
            except PluginError as error:
                found = (Finding(plugin, error.message, "bad", error.hint),)
            yield from ((plugin, finding) for finding in found)

    # ---------------------------------------------------------------------- calling

    def _registered(self) -> Any:
        """A pluggy manager with the loaded plugins.

        pluggy calls the last registered plugin first: registration in reverse gives the project's
        order.
        """
        manager = new_manager(warn=False)
        for name in reversed(self.names):
            manager.register(self._loaded[name].plugin, name)
        manager.check_pending()
        return manager

    def _implementing(self, hook: str) -> list[str]:
        """The plugins that implement ``hook``, in order; not those with a wrapper only."""
        impls = getattr(self._pluggy.hook, hook).get_hookimpls()
        own = {impl.plugin_name for impl in impls if not impl.wrapper}
        return [name for name in self.names if name in own]

    def _call(self, hook: str, plugin: str, arguments: Mapping[str, Any]) -> object:
        return call_hook(self._pluggy, hook, self._known[plugin], arguments, self._observers)

    def _collect(
        self, hook: str, kind: type[R], key: str, *, dispensable: bool = False
    ) -> tuple[tuple[str, R], ...]:
        """The records that all plugins return from ``hook``, each with its plugin; cached.

        ``key`` is the field that must differ between records, empty for none. If records are
        ``dispensable``, a failing plugin that the project does not name has none.
        """
        if hook not in self._records:
            pairs = [
                (plugin, record)
                for plugin in self._implementing(hook)
                for record in self._asked(hook, plugin, kind, key, dispensable)
            ]
            if key:
                self._check_unique(hook, pairs, key)
            self._records[hook] = tuple(pairs)
        return self._records[hook]

    def _asked(
        self, hook: str, plugin: str, kind: type[R], key: str, dispensable: bool
    ) -> Sequence[R]:
        try:
            return self._ask(hook, plugin, kind, key)
        except PluginError as error:
            if not dispensable or self._strict or self.state(plugin).requested:
                raise
            warnings.warn(TjWarning(f"tj: {error}"), stacklevel=2)
            return ()

    def _ask(
        self, hook: str, plugin: str, kind: type[R], key: str, more: Mapping[str, Any] = NO_MORE
    ) -> Sequence[R]:
        result = self._call(hook, plugin, {"options": self.options(plugin), **more})
        if not isinstance(result, tuple):
            raise self._broken_contract(hook, plugin, kind, repr(result))
        for record in result:
            if not isinstance(record, kind):
                raise self._broken_contract(hook, plugin, kind, f"one with {record!r} in it")
            if key and not _is_name(getattr(record, key)):
                raise self._broken_contract(hook, plugin, kind, f"one whose {key} is no name")
        return result

    def _broken_contract(self, hook: str, plugin: str, kind: type[Any], got: str) -> PluginError:
        return PluginError(
            f"{self.identity(plugin)}: {hook} must return a tuple of {kind.__name__}, not {got}",
            hint=how_to_disable(plugin),
        )

    def _check_unique(self, hook: str, pairs: Iterable[tuple[str, Any]], key: str) -> None:
        owners: dict[str, str] = {}
        for plugin, record in pairs:
            name = getattr(record, key)
            if name in owners:
                # The fallback runs what all others decline: it is not the one to do without.
                left_out = owners[name] if self.is_fallback(plugin) else plugin
                raise PluginConflictError(
                    f"{hook}: two {type(record).__name__} records have the {key} {name!r}: one of "
                    f"{self.identity(owners[name])} and one of {self.identity(plugin)}",
                    hint=f"give one of them another name; {how_to_disable(left_out)}",
                )
            owners[name] = plugin


def check_chosen(config: Config, manager: PluginManager) -> None:
    """Check the names of executors and frontends that the config chooses.

    Nothing is asked of the plugins if it chooses none.

    :raises ConfigError: for a name that no loaded plugin has.
    """
    for key, records in (("executors", manager.executors), ("frontend", manager.frontends)):
        chosen = config[key]
        names = (chosen.value,) if isinstance(chosen.value, str) else chosen.value
        if not names:
            continue
        known = [record.name for _, record in records()]
        for name in names:
            if name not in known and name != REST:
                raise ConfigError(
                    f"{chosen.origin}, {key!r}: no loaded plugin has {key.removesuffix('s')} "
                    f"{name!r}.{did_you_mean(name, known)}",
                    hint=f"known: {', '.join(known) or 'none'}",
                )


def _by_name(plugins: Iterable[Found]) -> dict[str, Found]:
    result: dict[str, Found] = {}
    for found in plugins:
        if found.name in result:
            raise PluginConflictError(
                f"two plugins are called {found.name!r}: {result[found.name]} and {found}",
                hint="give the plugin object another tj_name",
            )
        result[found.name] = found
    return result


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)
