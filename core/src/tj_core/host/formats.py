"""Forms of packages of the installed plugins, found without starting them.

A package runs without a session: of each plugin only the module is imported, which imports nothing
heavy, and one hook is asked. Plugins that the project disables are left out.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tj_core.contract.packages import PackageFormat
from tj_core.errors import PluginError, how_to_disable
from tj_core.host.config import load_config
from tj_core.host.discovery import discover
from tj_core.host.plugins import PluginManager

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor

__all__ = ["package_formats", "plugin_executors"]

HOOK = "tj_package_formats"


def package_formats() -> Iterator[PackageFormat]:
    """The records of all plugins that have some.

    :raises PluginError: if the hook of a plugin returns something else.
    """
    disabled = load_config(None, {}).core.disable or ()
    for found in discover():
        if found.name in disabled:
            continue
        module, _, attribute = found.target.partition(":")
        try:
            plugin = importlib.import_module(module)
            plugin = functools.reduce(getattr, filter(None, attribute.split(".")), plugin)
        except Exception:  # a plugin that cannot be imported has no form; `tj plugins` tells of it
            continue
        hook = getattr(plugin, HOOK, None)
        for record in hook() if hook is not None else ():
            if not isinstance(record, PackageFormat):
                raise PluginError(
                    f"{found}: {HOOK} must return PackageFormat records",
                    hint=how_to_disable(found.name),
                )
            yield record


def plugin_executors(
    plugins: Collection[str], options: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[str, Executor]:
    """The executors of ``plugins`` by name, for a package that runs.

    Options of a plugin are ``options``, by its name, else the project's.

    :raises PluginError: if one is not installed, or not available on this machine.
    """
    given = {name: dict(values) for name, values in options.items()}
    manager = PluginManager(load_config(None, {"plugins": sorted(plugins), **given}))
    found = manager.executors()
    return {e.name: replace(e, provider=manager.identity(plugin)) for plugin, e in found}
