"""A session: the plugins of one configuration, and all their records, ready for use.

The project's session is made at its first use; importing tj discovers nothing. A jitted callable
holds its session, so that two sessions can live side by side.
"""

from __future__ import annotations

import functools
import keyword
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tj_core.compile.collection import importing
from tj_core.compile.fusing import FusedRegions
from tj_core.compile.kept_programs import MOST, KeptPrograms
from tj_core.compile.kept_regions import KeptRegions
from tj_core.compile.pipeline import Pipeline
from tj_core.compile.progress import Progress
from tj_core.compile.transforms import USER, Ranked, Transform
from tj_core.contract.beside import Beside
from tj_core.contract.dialects import ContextSpeller, Dialect
from tj_core.contract.executors import Executor
from tj_core.contract.rules import RuleTable
from tj_core.contract.runs_as import RUNS_AS
from tj_core.disk import Entries, cache_folder
from tj_core.errors import ConfigError, PluginError
from tj_core.host.config import REST, load_config
from tj_core.host.executor_order import executor_order
from tj_core.host.fingerprint import libraries_of, session_fingerprint
from tj_core.host.logs import print_logs
from tj_core.host.naming import INSTALL_HINT, named
from tj_core.host.notices import UnfusedTraining
from tj_core.host.plugins import PluginManager, split_plugins
from tj_core.host.registration import Names, check_claims, check_rules, readers
from tj_core.host.ties import HOW_TO_ORDER, Ties, ties
from tj_core.ir.symbol import Symbol
from tj_core.ir.tags import TagRegistry
from tj_core.text.language import Language

if TYPE_CHECKING:
    import os

    from tj_core.contract.expansion import Expand
    from tj_core.host.frontends import Frontend
    from tj_core.host.plugins import PluginState
    from tj_core.ir.trace import Trace

__all__ = ["Session", "current_session"]


class Session:
    """Plugin manager, config, tables and registries of one configuration.

    ``plugins`` is an ordered list of plugin names, plugin objects and ``"..."`` (the defaults
    here); None takes the config's. ``overrides`` are config values that win over all others: core
    keys, and tables of plugins by name. ``start`` is where the search for the project's config
    begins.

    :raises ConfigError: for a wrong configuration.
    :raises PluginError: for a plugin that the project names and that cannot be loaded.
    """

    @importing()
    def __init__(
        self,
        plugins: Sequence[str | object] | None = None,
        disable: Sequence[str] = (),
        overrides: Mapping[str, object] | None = None,
        start: str | os.PathLike[str] | None = None,
    ) -> None:
        values: dict[str, object] = dict(overrides or {})
        if isinstance(disable, str):
            raise ConfigError(f"disable must be a list of names, not {disable!r}")
        if disable:
            values["disable"] = [*disable, REST]
        names, objects = split_plugins(plugins)
        if names is not None:
            values["plugins"] = names
        self.config = load_config(start, values)
        print_logs(self.config.core.logs)
        self.plugins = PluginManager(self.config, objects)
        self.tags = TagRegistry(self.plugins.tags())
        self.tables = self._tables()
        self.executors = tuple(self._owned(p, record) for p, record in self.plugins.executors())
        self.language = self._language()
        found = (dialect.beside for _, dialect in self.plugins.dialects())
        self.beside = next((beside for beside in found if beside is not None), Beside())
        self.frontends = _sorted(record for _, record in self.plugins.frontends())
        self.transforms = tuple(
            Ranked(p, record, self.plugins.identity(p)) for p, record in self.plugins.transforms()
        )
        self.regions = FusedRegions(self.tags, self.config.core.strict)
        self.unfused_training = UnfusedTraining()
        self.ties = Ties(self.plugins)
        self.finished: KeptPrograms | None = None
        self.progress = Progress(self.config.core.progress)
        self._keep()
        self._check_registered()

    def _tables(self) -> dict[str, RuleTable[Any]]:
        """All rule tables by name, merged in the plugins' order, frozen."""
        # The session reads these two, also where no plugin has such a table.
        groups: dict[str, list[RuleTable[Any]]] = {"expand": [], "context": []}
        for plugin, table in self.plugins.rule_tables():
            groups.setdefault(table.name, []).append(
                table.stamped(plugin, self.plugins.rank(plugin))
            )
        return {
            name: functools.reduce(lambda a, b: a | b, tables, RuleTable(name)).frozen()
            for name, tables in groups.items()
        }

    def _keep(self) -> None:
        """Set up the caches on disk; not without fusion, where compilation is quick."""
        folder = cache_folder(self.config.core.cache_dir)
        if folder is None or not any(e.fusion for e in self.executors):
            return
        known = functools.cache(functools.partial(session_fingerprint, self.plugins))
        self.regions.kept = KeptRegions(Entries(folder / "regions"), self.executors, known)
        self.finished = KeptPrograms(
            Entries(folder / "programs", MOST),
            self.executors,
            tuple(ranked.transform for ranked in self.transforms),
            self.language,
            known,
            self._libraries,
        )

    def _libraries(self, executor: Executor) -> str:
        """The versions of what the distributions of the executor's plugin require."""
        owners = (p for p, record in self.plugins.executors() if record.name == executor.name)
        return libraries_of(self.plugins.state(next(owners)).distribution)

    def _check_registered(self) -> None:
        if not self.frontends and self._left_out:
            return  # rules may be for what those bring; nothing is captured without a frontend
        tables = self.plugins.rule_tables()
        known = readers(table for _, table in tables)
        for plugin, table in tables:
            check_rules(self.plugins.identity(plugin), table, known, self._names)
        for executor in self.executors:
            check_claims(executor, self._names)

    @property
    def _names(self) -> Names:
        return Names(self.language, self.config.core.strict)

    def _owned(self, plugin: str, executor: Executor) -> Executor:
        """``executor`` with its plugin as provider and as owner of its claims."""
        claims = executor.claims.stamped(plugin, self.plugins.rank(plugin)).frozen()
        return replace(executor, claims=claims, provider=self.plugins.identity(plugin))

    def _language(self) -> Language:
        contexts: dict[str, ContextSpeller] = {
            rule.key.removeprefix("context."): rule.value for rule in self.tables["context"]
        }
        dialects = [record for _, record in self.plugins.dialects()]
        known = {d.namespace for d in dialects}
        dialects += [_executor_dialect(e) for e in self.executors if e.name not in known]
        return Language(dialects, contexts, self.tables.get(RUNS_AS))

    @property
    def expand(self) -> RuleTable[Expand]:
        """The table of expansions."""
        return self.tables["expand"]

    def frontend_for(self, fn: Any, name: str | None = None) -> Frontend:
        """The frontend called ``name``, or the config's, or the first that accepts ``fn``.

        :raises ConfigError: if no frontend has the name.
        :raises PluginError: if no frontend accepts ``fn``; the message tells how to install one.
        """
        wanted = name or self.config.core.frontend
        if wanted is not None:
            return named(wanted, self.frontends, "frontend")
        for frontend in self.frontends:
            if frontend.accepts(fn):
                return frontend
        known = ", ".join(f.name for f in self.frontends) or "none"
        if not self.frontends and self._left_out:
            raise _nothing_is_captured(self._left_out)
        raise PluginError(f"no frontend can capture {fn!r} (frontends: {known})", hint=INSTALL_HINT)

    @property
    def _left_out(self) -> list[PluginState]:
        """The plugins that the config leaves out: those that it disables, else those not listed."""
        states = self.plugins.states
        blocked = [s for s in states if s.state == "blocked"]
        return blocked or [s for s in states if s.state == "installed"]

    def tied(self) -> tuple[tuple[str, str], ...]:
        """The executors that are asked before others by their names alone, each with a text."""
        return tuple((tie.executors[0], f"{tie}. {HOW_TO_ORDER}") for tie in ties(self.plugins))

    def pipeline(
        self,
        transforms: Iterable[Transform] = (),
        executors: Sequence[str | Executor] | None = None,
    ) -> Pipeline:
        """The session's passes, then ``transforms``; ``executors`` are asked in the given order.

        Inside a stage the plugins' transforms run by the plugins' order, else priority, else
        name, those that produce a stage last; ``transforms`` by priority, else in the given order.
        """
        own = sorted(self.transforms, key=self._place)
        users = sorted(transforms, key=lambda t: -t.priority)
        ranked = [*own, *(Ranked(USER, t) for t in users)]
        ordered = self._ordered(executors)

        def notice(acquired: Trace) -> None:
            self.unfused_training.look_at(acquired, ordered, ranked)
            self.ties.look_at(ordered, ordered=executors is not None)

        return Pipeline(
            ranked,
            ordered,
            self.expand,
            self.tags,
            self.tables,
            self.config.core.check,
            self.config.core.cse,
            strict=self.config.core.strict,
            regions=self.regions,
            finished=self.finished,
            progress=self.progress,
            notice=notice,
        )

    def _place(self, ranked: Ranked) -> tuple[Any, ...]:
        """The key to sort the plugins' transforms by."""
        plugin, transform = ranked.plugin, ranked.transform
        leaves = transform.produces is not None
        return leaves, -self.plugins.rank(plugin), -transform.priority, transform.name

    def _ordered(self, wanted: Sequence[str | Executor] | None) -> tuple[Executor, ...]:
        chosen = self.config.core.executors if wanted is None else wanted
        if chosen is None:
            return self.executors
        for given in chosen:
            if isinstance(given, Executor):
                check_claims(given, self._names)
        return executor_order(chosen, self.executors)


def _nothing_is_captured(left_out: Iterable[PluginState]) -> PluginError:
    names: dict[str, list[str]] = {}
    for state in left_out:
        names.setdefault(state.reason, []).append(repr(state.name))
    said = "; ".join(f"{', '.join(found)} {reason}" for reason, found in names.items())
    return PluginError(
        f"nothing can be captured, since no plugin with a frontend is loaded: {said}",
        hint="`tj plugins --all` shows what is installed",
    )


def _executor_dialect(executor: Executor) -> Dialect:
    """The dialect of an executor's claimed calls: ``null.torch.add`` is null's ``torch.add``.

    :raises PluginError: if the executor's name is no identifier, as printed programs need.
    """
    if not executor.name.isidentifier() or keyword.iskeyword(executor.name):
        raise PluginError(
            f"the name of executor {executor.name!r} is no Python name, as printed traces need"
        )

    def resolve(symbol: Symbol) -> Callable[..., Any]:
        rule = executor.claims.get(Symbol.parse(symbol.path))
        if rule is None or rule.value.implementation is None:
            raise LookupError(symbol.qualname)
        return rule.value.implementation

    prelude = (f"from tj_core.namespaces import {executor.name}",)
    return Dialect(executor.name, prelude, resolve)


def _sorted(frontends: Iterable[Frontend]) -> tuple[Frontend, ...]:
    return tuple(sorted(frontends, key=lambda f: (-f.priority, f.name)))


# The session that `tj.jit` takes where it is given none.
_lock = threading.Lock()
_current: Session | None = None


def current_session() -> Session:
    """The process's session for the project in the working directory, made at the first call."""
    global _current
    with _lock:
        if _current is None:
            _current = Session()
        return _current
