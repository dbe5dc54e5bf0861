"""Load one plugin: import it, check it against the contract, and check its availability.

A plugin is tried in a pluggy manager of its own first, so that a failure does not affect the
session's manager. Every fault of the plugin is raised; `tj_core.host.activation` decides if it is
an error of the session or a warning.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import pluggy

from tj_core.errors import PluginError, did_you_mean
from tj_core.host import hookspecs
from tj_core.host.config import CORE_KEYS, Config
from tj_core.host.discovery import GROUP, Found, core_version
from tj_core.host.hookcall import Observer, call_hook
from tj_core.host.options import Resolved, schema
from tj_core.host.requirements import check_core_range

__all__ = ["INLINE", "Loaded", "Unavailable", "inline_plugin", "load", "new_manager"]

INLINE = "inline"
"""The name of the distribution of plugin objects that were passed in."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin that keeps the contract and is available."""

    found: Found
    plugin: Any
    hooks: tuple[str, ...]
    priority: int
    file: str
    options: Resolved[Any] | None
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A plugin that cannot work on this machine, with its reason."""

    found: Found
    hooks: tuple[str, ...]
    file: str
    reason: str


def new_manager(*, warn: bool = True) -> pluggy.PluginManager:
    """A pluggy manager with tj's hook specifications and no plugin.

    Registration of a plugin warns of deprecated hooks and arguments, unless ``warn`` is False: for
    a session's plugins, the warning was given when each was loaded.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    if not warn:
        for name in _hook_names(manager):
            spec = getattr(manager.hook, name).spec
            spec.warn_on_impl = spec.warn_on_impl_args = None
    return manager


def _hook_names(manager: pluggy.PluginManager) -> list[str]:
    return [n for n in vars(hookspecs) if manager.parse_hookspec_opts(hookspecs, n) is not None]


def load(
    found: Found,
    plugin: object | None,
    config: Config,
    known: Collection[str],
    observers: tuple[Observer, ...] = (),
) -> Loaded | Unavailable:
    """Load one plugin; ``plugin`` is its object if it was passed in, None to import it.

    :raises ConfigError: if the user's options do not fit the plugin's.
    :raises PluginError: if the plugin breaks the contract.
    :raises Exception: any error of the plugin's import.
    """
    if found.name in CORE_KEYS:
        raise PluginError(f"{found.name!r} is a key of [tool.tj], so no plugin can have that name")
    if plugin is None:
        check_core_range(found)
        plugin = _import(found.target)
    _check_api(plugin)
    hooks = _check_hooks(found.name, plugin)
    trial = new_manager()
    trial.register(plugin, found.name)
    trial.check_pending()
    reason = call_hook(trial, "tj_available", found, {}, observers)
    if reason is not None:
        return Unavailable(found, hooks, _file(plugin), _checked_reason(reason))
    options = _options(trial, found, config, known, observers)
    fallback = bool(getattr(plugin, "TJ_FALLBACK", False))
    return Loaded(found, plugin, hooks, _priority(plugin), _file(plugin), options, fallback)


def inline_plugin(plugin: object) -> tuple[Found, object]:
    """The record of a plugin object that was passed in, and the object in a hashable form.

    :raises PluginError: if the object has no name.
    """
    name = getattr(plugin, "tj_name", None) or getattr(plugin, "__name__", None)
    if not isinstance(name, str):
        raise PluginError(
            f"the plugin object {plugin!r} has no name",
            hint='give it an attribute tj_name = "..."',
        )
    target = getattr(plugin, "__name__", type(plugin).__qualname__)
    return Found(name, INLINE, "", target), _hashable(name, plugin)


# ------------------------------------------------------------------------------- contract


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        found = importlib.import_module(module.strip())
    except SystemExit as error:  # raised by a script; it must not end the user's process
        raise PluginError(f"importing it raised SystemExit({error})") from error
    # Extras may follow in an entry point: ``module:attribute [extra]``.
    path = attribute.partition("[")[0].strip()
    return functools.reduce(getattr, path.split("."), found) if path else found


def _check_api(plugin: object) -> None:
    has = hookspecs.PLUGIN_API
    wanted = getattr(plugin, "TJ_PLUGIN_API", has)
    if type(wanted) is not int:
        raise PluginError(f"TJ_PLUGIN_API must be an integer, not {wanted!r}")
    if wanted != has:
        raise PluginError(
            f"it is written for plugin API {wanted}, "
            f"tj-core {core_version()} has plugin API {has}; "
            f"install a newer {'tj-core' if wanted > has else 'version of the plugin'}"
        )


def _priority(plugin: object) -> int:
    priority = getattr(plugin, "TJ_PRIORITY", 0)
    if type(priority) is not int:
        raise PluginError(f"TJ_PRIORITY must be an integer, not {priority!r}")
    return priority


def _check_hooks(name: str, plugin: object) -> tuple[str, ...]:
    """The hooks that ``plugin`` implements, in the order of the hookspecs.

    Refused here, and accepted by pluggy: a hook without its marker (never called), a hook with an
    unknown name (pluggy's late error does not name the plugin), and marks for an order of its own.
    For an unknown argument, pluggy's error does not list the known ones.
    """
    manager = new_manager()
    specs = _hook_names(manager)
    implemented: list[str] = []
    for attribute in dir(plugin):
        marks = manager.parse_hookimpl_opts(plugin, attribute)
        if marks is None:
            _check_unmarked(attribute, plugin, specs)
            continue
        hook = marks.get("specname") or attribute
        if hook not in specs:
            if marks.get("optionalhook"):
                continue
            raise PluginError(f"it implements an unknown hook {hook!r}.{did_you_mean(hook, specs)}")
        _check_marks(hook, dict(marks))
        _check_arguments(
            hook,
            pluggy.HookImpl(plugin, name, getattr(plugin, attribute), marks).argnames,
            getattr(manager.hook, hook).spec.argnames,
        )
        implemented += [hook]
    _check_once(implemented)
    return tuple(hook for hook in specs if hook in implemented)


def _check_marks(hook: str, marks: dict[str, Any]) -> None:
    if marks.get("tryfirst") or marks.get("trylast"):
        raise PluginError(
            f"{hook} is marked tryfirst or trylast; the order of plugins is the project's, "
            "see 'plugins' in [tool.tj]"
        )
    if marks.get("hookwrapper"):
        raise PluginError(f"{hook} is marked hookwrapper; use wrapper=True")


def _check_arguments(hook: str, taken: Iterable[str], given: Collection[str]) -> None:
    for argument in taken:
        if argument not in given:
            raise PluginError(
                f"its {hook} takes an argument {argument!r}, but the hook is "
                f"{hook}({', '.join(given)}).{did_you_mean(argument, given)}"
            )


def _check_once(implemented: Iterable[str]) -> None:
    seen: set[str] = set()
    for hook in implemented:
        if hook in seen:
            raise PluginError(f"it implements {hook} twice")
        seen.add(hook)


def _check_unmarked(attribute: str, plugin: object, specs: Collection[str]) -> None:
    if not attribute.startswith("tj_"):
        return
    # Static: a property of the plugin's must not run.
    value = inspect.getattr_static(plugin, attribute, None)
    if not isinstance(value, types.FunctionType | types.MethodType | staticmethod | classmethod):
        return
    if inspect.ismodule(plugin) and getattr(value, "__module__", "") != plugin.__name__:
        return
    raise PluginError(
        f"its function {attribute} is not marked with @hookimpl; names that start with tj_ are "
        f"kept for hooks.{'' if attribute in specs else did_you_mean(attribute, specs)}"
    )


def _checked_reason(reason: object) -> str:
    if not isinstance(reason, str) or not reason:
        raise PluginError(f"tj_available must return None or a reason, not {reason!r}")
    return reason


def _options(
    trial: pluggy.PluginManager,
    found: Found,
    config: Config,
    known: Collection[str],
    observers: tuple[Observer, ...],
) -> Resolved[Any] | None:
    declared: Any = call_hook(trial, "tj_options", found, {}, observers)
    cls: type[Any] = _NoOptions if declared is None else declared
    try:
        schema(cls)
    except (TypeError, NameError) as error:
        raise PluginError(f"tj_options: {error}") from error
    resolved = config.plugin_options(found.name, cls, known=known)
    return None if declared is None else resolved


@dataclass(frozen=True, slots=True)
class _NoOptions:
    """The options of a plugin without declared options: any key in its table is unknown."""


def _file(plugin: object) -> str:
    holder = plugin if inspect.ismodule(plugin) or inspect.isclass(plugin) else type(plugin)
    try:
        return inspect.getsourcefile(holder) or ""
    except (TypeError, OSError):  # a built-in type, or code without a file, as of `python -c`
        return ""


def _hashable(name: str, plugin: object) -> object:
    """``plugin``, or a module with the same attributes for a plugin that is not hashable.

    pluggy keeps plugins in sets; a namespace or a plain dataclass instance cannot be in one.
    """
    try:
        hash(plugin)
    except TypeError:
        module = types.ModuleType(name)
        for attribute in dir(plugin):
            if not attribute.startswith("__"):
                setattr(module, attribute, getattr(plugin, attribute))
        return module
    return plugin
